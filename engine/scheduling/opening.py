"""How a sequence begins: what of its prompt is known, what that makes it, and a session with room to begin."""

from __future__ import annotations

from collections.abc import Iterable

from ..capsules.store import CapsuleStore
from ..prefix.block_cache import BlockCache, Match
from ..prefix.conversations import Conversations
from ..prefix.kv_pool import OutOfBlocks
from ..prefix.reuse import PrefixMemory, Reuse
from ..prefix.session import Session
from ..runners.runner import Runner
from ..sequence import Sequence
from .rooms import Rooms


class Opening:
    """Opens sequences on the blocks of one pool; engine thread only."""

    def __init__(
        self,
        runner: Runner,
        cache: BlockCache,
        capsules: CapsuleStore,
        conversations: Conversations,
        rooms: Rooms,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._rooms = rooms
        self._memory = PrefixMemory(cache, capsules, conversations)

    def open(self, sequence: Sequence, started: Iterable[Sequence]) -> Reuse:
        """Gives `sequence` its session, with its first room, and its cached tokens; `started` are those beside it.

        Raises OutOfBlocks, and then the sequence is as it was.
        """
        reuse = self._memory.reuse(sequence)
        self._rooms.check_start(sequence, reuse.match, started)
        sequence.session = self._open_session(sequence, reuse.match)
        sequence.cached_tokens = reuse.plan.cached_tokens
        return reuse

    def _open_session(self, sequence: Sequence, match: Match) -> Session:
        session = Session(self._cache, self._runner.geometry, sequence.namespace, sequence.stable)
        try:
            session.begin(match, self._rooms.first(sequence), self._runner)
        except OutOfBlocks:
            session.close()
            raise
        return session
