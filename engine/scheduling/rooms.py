"""Room in the KV pool for requests that grow, in blocks.

A request starts with room for its prompt and the beginning of a reply, and takes more as it goes on. Room is given only
where all that have started can still be brought to their ends, one after the other (Dijkstra's banker's algorithm,
EWD 108, with one kind of resource). So requests never wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..prefix.block_cache import Match
from ..prefix.kv_pool import BlockPool, OutOfBlocks
from ..runners.runner import KvGeometry
from ..sequence import Sequence


class Claim(NamedTuple):
    """What a started request holds that its end gives back, and what it may still ask for."""

    held: int
    wanted: int


def is_safe(available: int, claims: Iterable[Claim]) -> bool:
    """Whether every claim can be met in some order, if each gives back what it holds once it was."""
    for claim in sorted(claims, key=lambda one: one.wanted):
        if claim.wanted > available:
            return False
        available += claim.held
    return True


class Rooms:
    """Gives the sequences of one pool their room; engine thread only.

    A sequence starts with room for `reply_tokens` behind its prompt and takes as much again when a step of
    `step_tokens` would not fit.
    """

    def __init__(self, blocks: BlockPool, geometry: KvGeometry, reply_tokens: int, step_tokens: int) -> None:
        self._blocks = blocks
        self._count = geometry.blocks_for
        self._reply_tokens = max(reply_tokens, step_tokens)
        self._step_tokens = step_tokens

    def first(self, sequence: Sequence) -> int:
        """The tokens that a sequence has room for when it starts."""
        return min(_whole(sequence), len(sequence.prompt) + self._reply_tokens)

    def check_start(self, sequence: Sequence, match: Match, started: Iterable[Sequence]) -> None:
        """Raises OutOfBlocks when a sequence that takes over `match` can't start beside those that have started."""
        revived = sum(self._blocks.is_idle(node.block) for node in match.nodes)
        available = self._blocks.available - revived
        fresh = self._count(self.first(sequence)) - len(match.nodes)
        later = self._count(_whole(sequence)) - self._count(self.first(sequence))
        claims = [*map(self._claim, started), Claim(fresh + revived, later)]
        if fresh > available or not is_safe(available - fresh, claims):
            raise OutOfBlocks(fresh + later, available)

    def grow(self, sequence: Sequence, started: Iterable[Sequence]) -> bool:
        """Gives a sequence room for its next step. False when it has to wait until another one ends."""
        session = sequence.session
        assert session is not None, "only what has started grows"
        if session.room >= min(_whole(sequence), sequence.known + self._step_tokens):
            return True
        room = min(_whole(sequence), sequence.known + self._reply_tokens)
        more = self._count(room) - len(session.block_table)
        claims = [self._claim(one, more if one is sequence else 0) for one in started]
        if more > self._blocks.available or not is_safe(self._blocks.available - more, claims):
            return False
        session.grow(more)
        return True

    def _claim(self, sequence: Sequence, more: int = 0) -> Claim:
        """The claim of a started sequence that is given `more` blocks."""
        assert sequence.session is not None
        table = sequence.session.block_table
        # What others hold too does not come free with its end.
        held = self._blocks.held_once(table)
        return Claim(held + more, self._count(_whole(sequence)) - len(table) - more)


def _whole(sequence: Sequence) -> int:
    """The tokens of a sequence at its longest, and one more: a dummy row of exact mode needs a place too."""
    return len(sequence.prompt) + sequence.max_new_tokens + 1
