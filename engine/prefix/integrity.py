"""The books of pool and index, checked in parts: a round looks at every block once, a part at a few of them.

    idle      part │ pause │ part │ pause │ …          worker, until the round is done
    request                     └ waits for one part at most, about a millisecond

Each part compares with the holders of its own moment, so requests between two parts do no harm. What is compared as
a whole, the lists of idle blocks and the few rows of recurrent state, belongs to the first part of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .block_cache import BlockCache

PART_BLOCKS = 128


class Holders(NamedTuple):
    """Who holds blocks and rows of recurrent state now: one item for each reference, grouped by holder."""

    blocks: Iterable[Iterable[int]]
    state_rows: Iterable[Iterable[int]]


class IntegrityCheck:
    """Checks one cache against `holders`, which is asked anew for each part. Raises AssertionError."""

    def __init__(self, cache: BlockCache, holders: Callable[[], Holders]) -> None:
        self._cache = cache
        self._holders = holders
        self._next = 0

    def whole(self) -> None:
        """A round in one go."""
        self._next = 0
        while self.part():
            pass

    def part(self) -> bool:
        """The next part of a round; True while there are more."""
        held = self._holders()
        if not self._next:
            self._cache.blocks.check_lists()
            self._cache.state_rows.check_integrity(held.state_rows)
        blocks = range(self._next, min(self._next + PART_BLOCKS, self._cache.blocks.size))
        self._cache.blocks.check_slots(blocks, held.blocks)
        self._cache.check_nodes(blocks)
        is_done = blocks.stop == self._cache.blocks.size
        self._next = 0 if is_done else blocks.stop
        return not is_done


class IntegrityChecks:
    """Several checks, one after the other, as if they were one."""

    def __init__(self, checks: Sequence[IntegrityCheck]) -> None:
        self._checks = tuple(checks)
        self._current = 0

    def whole(self) -> None:
        """A round of each in one go."""
        self._current = 0
        for check in self._checks:
            check.whole()

    def part(self) -> bool:
        """The next part of a round through all; True while there are more."""
        if not self._checks[self._current].part():
            self._current = (self._current + 1) % len(self._checks)
            return self._current > 0
        return True
