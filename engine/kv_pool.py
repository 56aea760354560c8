"""Who uses which slot of the KV pool: a free list and reference counts, no bytes.

The same book-keeping serves KV blocks and rows of recurrent state. The bytes lie in the runner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class OutOfBlocks(Exception):
    """The pool can't give what was asked; nothing was allocated."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} blocks wanted, {free} free")
        self.wanted = wanted
        self.free = free


class BlockPool:
    """`size` slots, numbered from 0. A slot is free, or referenced once or more.

    Only the engine thread calls it (invariant I1).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = [0] * size
        # Popped from the end, so that low numbers go first and the touched part of the pool stays small.
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.size - len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free slots with one reference each. Raises OutOfBlocks and takes none."""
        if count > len(self._free):
            raise OutOfBlocks(count, len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            assert self._references[block] == 0, f"block {block} was free and referenced"
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each; all must be in use."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free and can't be shared"
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops a reference of each; a slot without any is free again."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} was released twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Asserts that the counts are those of `holders`, and that free and used slots add up to all (I4)."""
        held = Counter(block for holder in holders for block in holder)
        for block, count in enumerate(self._references):
            assert count == held[block], f"block {block}: {count} references, {held[block]} holders"
        assert len(set(self._free)) == len(self._free), "a block is twice on the free list"
        assert all(self._references[block] == 0 for block in self._free), "a free block is referenced"
        assert len(self._free) == self._references.count(0), (
            "a block without references is not on the free list"
        )
