"""Answers about sessions: what the worker remembers of conversations, forked, cut and forgotten on request.

A session is its tokens. Its blocks belong to nobody: they are found by their content, so a fork shares all of them
and the tail is copied when the first request writes to it. Cutting a session decides what its next request is
compared with; what was computed stays in `block_cache`, for whoever has the same tokens again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..capsules.disk import CapsuleDisk
from ..messages.sessions import (
    DeleteSession,
    ForkSession,
    ListSessions,
    SessionAnswer,
    SessionCommand,
    SessionDone,
    SessionInfo,
    SessionList,
    SessionRefused,
    SessionTier,
    TruncateSession,
)
from ..runners.runner import KvGeometry
from .block_cache import BlockCache
from .conversations import Conversation, Conversations


@dataclass(frozen=True, slots=True)
class SessionDesk:
    """The sessions of one worker, whose blocks `cache` and `disk` know. Engine thread only."""

    conversations: Conversations
    cache: BlockCache
    geometry: KvGeometry
    disk: CapsuleDisk | None = None

    def answer(self, message: SessionCommand) -> SessionAnswer:
        """Does what the daemon asks about sessions; a refusal changes nothing."""
        if isinstance(message, ListSessions):
            return self._list(message)
        found = self.conversations.get(message.namespace, message.session_id)
        if found is None:
            text = f"there is no session {message.session_id!r}"
            return SessionRefused(message.request_id, 404, "session_not_found", text, "id")
        if isinstance(message, ForkSession):
            return self._fork(message, found)
        if found.running:
            text = f"a request of session {found.id!r} is running"
            return SessionRefused(message.request_id, 409, "session_busy", text, "id")
        if isinstance(message, DeleteSession):
            self.conversations.remove(found)
            return SessionDone(message.request_id, self._info(found))
        return self._truncate(message, found)

    def _list(self, message: ListSessions) -> SessionList:
        wanted = [
            item
            for item in self.conversations
            if message.namespace in (None, item.namespace) and message.session_id in (None, item.id)
        ]
        return SessionList(message.request_id, tuple(self._info(item) for item in reversed(wanted)))

    def _fork(self, message: ForkSession, source: Conversation) -> SessionAnswer:
        name = message.new_id
        if name is not None and self.conversations.get(source.namespace, name) is not None:
            text = f"there is a session {name!r} already"
            return SessionRefused(message.request_id, 409, "session_exists", text, "session_id")
        branch = self.conversations.fork(source, name)
        return SessionDone(message.request_id, self._info(branch))

    def _truncate(self, message: TruncateSession, found: Conversation) -> SessionAnswer:
        if message.tokens is not None:
            has, wanted, field, unit = len(found.tokens), message.tokens, "tokens", "tokens"
        else:
            has, wanted, field, unit = len(found.turns), message.drop_turns or 0, "drop_turns", "known turns"
        if not 1 <= wanted <= has:
            text = f"{field} must be between 1 and the session's {has} {unit}, got {wanted}"
            return SessionRefused(message.request_id, 400, "invalid_value", text, field)
        end = wanted if message.tokens is not None else found.turns[-wanted]
        found.cut(end, self.geometry.block_tokens)
        found.action = "truncate"
        return SessionDone(message.request_id, self._info(found))

    def _info(self, item: Conversation) -> SessionInfo:
        in_pool = self._in_pool(item)
        return SessionInfo(
            id=item.id,
            namespace=item.namespace,
            tokens=len(item.tokens),
            bytes=self.geometry.blocks_for(len(item.tokens)) * self.geometry.block_bytes,
            tier=self._tier(item, in_pool),
            pool_tokens=in_pool * self.geometry.block_tokens,
            last_action=item.action,
            turns=len(item.turns),
            hits=item.hits,
            running=item.running,
            created=item.created,
            last_used=item.used,
        )

    def _in_pool(self, item: Conversation) -> int:
        """How many of the whole blocks are in the pool; none is there without the one before it."""
        count = len(item.blocks)
        while count and not self.cache.has(item.blocks[count - 1]):
            count -= 1
        return count

    def _tier(self, item: Conversation, in_pool: int) -> SessionTier:
        if in_pool == len(item.blocks):
            return "pool"
        before = item.blocks[in_pool - 1] if in_pool else self.cache.root(item.namespace).key
        missing = item.blocks[in_pool:]
        pairs = pairwise((before, *missing))
        if self.disk is not None and all(self.disk.has(parent, key) for parent, key in pairs):
            return "disk"
        is_any = in_pool or (self.disk is not None and self.disk.has(before, missing[0]))
        return "part" if is_any else "lost"
