"""What was computed for whom: the tokens of recent conversations, kept to name what happens to the next prompt.

They hold no blocks. How much of a prompt can be reused is decided by `block_cache` alone; this is about telling a
continued conversation from a retry, an edit or a branch. So a fork costs nothing, and cutting one conversation takes
nothing from another.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..protocol import PrefixAction

_NOTHING: NDArray[np.int32] = np.array([], np.int32)


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation after its last turn.

    `tokens` are those committed, `blocks` the addresses of the whole blocks among them. `turns` are the positions
    where user turns begin, as far as requests have shown them. `is_named` when the id came from outside. `hits`
    counts the requests that continued it, `running` those that still do. Times are unix seconds.
    """

    id: str
    namespace: str
    action: PrefixAction
    is_named: bool
    created: float
    used: float
    tokens: NDArray[np.int32] = field(default_factory=lambda: _NOTHING)
    blocks: tuple[bytes, ...] = ()
    turns: tuple[int, ...] = ()
    hits: int = 0
    running: int = 0

    @property
    def turn_start(self) -> int:
        """Where the last user turn begins; 0 when that is not known."""
        return self.turns[-1] if self.turns else 0

    def cut(self, count: int, block_tokens: int) -> None:
        """Keeps the first `count` tokens."""
        self.tokens = self.tokens[:count].copy()
        self.blocks = self.blocks[: count // block_tokens]
        self.turns = tuple(start for start in self.turns if start < count)


class Nearest(NamedTuple):
    """The conversation that shares most with a prompt, and how many tokens that is."""

    conversation: Conversation
    common: int


@dataclass(slots=True)
class Conversations:
    """The last `limit` conversations, least recently used first; those that run are kept beyond it."""

    limit: int = 64
    _items: OrderedDict[tuple[str, str], Conversation] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Conversation]:
        """The least recently used first."""
        return iter(self._items.values())

    def get(self, namespace: str, name: str) -> Conversation | None:
        """The conversation of that id; ids of another namespace do not exist for this one."""
        return self._items.get((namespace, name))

    def latest(self, namespace: str) -> Conversation | None:
        """The one that was used last."""
        return next((item for item in reversed(self._items.values()) if item.namespace == namespace), None)

    def nearest(
        self, namespace: str, prompt: Sequence[int], named: Conversation | None = None
    ) -> Nearest | None:
        """The one with the longest common prefix, of equals one that nobody named, else the latest. A request that asks
        for `named` is compared with that, if it shares anything. None when none shares a token."""
        wanted = np.array(prompt, np.int32)
        if named is not None and (common := common_prefix(named.tokens, wanted)):
            return Nearest(named, common)
        best, best_rank = None, (0, False)
        for item in reversed(self._items.values()):
            if item.namespace != namespace:
                continue
            common = common_prefix(item.tokens, wanted)
            rank = (common, not item.is_named)
            if common and rank > best_rank:
                best, best_rank = Nearest(item, common), rank
        return best

    def record(
        self, continued: Conversation | None, namespace: str, name: str | None, action: PrefixAction
    ) -> Conversation:
        """The conversation that a prompt continues, or a new one; it becomes the latest, and runs until `ended`."""
        if continued is None:
            continued = self._new(namespace, name, action)
        else:
            continued.hits += 1
        continued.used, continued.action = time.time(), action
        continued.running += 1
        self._keep(continued)
        return continued

    def ended(
        self,
        conversation: Conversation,
        tokens: Sequence[int],
        blocks: tuple[bytes, ...],
        turn_start: int,
    ) -> None:
        """A request that `record` noted has left these tokens, the last user turn beginning at `turn_start`."""
        now = np.array(tokens, np.int32)
        common = common_prefix(conversation.tokens, now)
        known = tuple(start for start in conversation.turns if start < min(turn_start, common))
        conversation.tokens, conversation.blocks = now, blocks
        conversation.turns = (*known, turn_start) if turn_start else known
        conversation.running -= 1
        self._trim()

    def fork(self, source: Conversation, name: str | None) -> Conversation:
        """A conversation of its own with the same tokens, under a name that is free or, without, a new one."""
        branch = self._new(source.namespace, name, "fork")
        branch.is_named = True
        branch.tokens, branch.blocks, branch.turns = source.tokens, source.blocks, source.turns
        self._keep(branch)
        return branch

    def remove(self, conversation: Conversation) -> None:
        """Forgets a conversation; what was computed for it stays known by its content."""
        del self._items[conversation.namespace, conversation.id]

    def forget_idle(self, before: float) -> None:
        """Forgets those that were used last before that time, in unix seconds, unless a request runs in them."""
        for conversation in tuple(self._items.values()):
            if conversation.used >= before:
                return
            if not conversation.running:
                self.remove(conversation)

    def _new(self, namespace: str, name: str | None, action: PrefixAction) -> Conversation:
        now = time.time()
        return Conversation(name or self._free_id(namespace), namespace, action, name is not None, now, now)

    def _free_id(self, namespace: str) -> str:
        # Not a number: an id that a client kept from an earlier worker must not meet another conversation.
        while (namespace, name := f"s-{secrets.token_hex(4)}") in self._items:
            pass
        return name

    def _keep(self, conversation: Conversation) -> None:
        key = conversation.namespace, conversation.id
        self._items[key] = conversation
        self._items.move_to_end(key)
        self._trim()

    def _trim(self) -> None:
        surplus = max(0, len(self._items) - self.limit)
        idle = [key for key, item in self._items.items() if not item.running]
        for key in idle[:surplus]:
            del self._items[key]


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """The number of leading tokens that both share."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
