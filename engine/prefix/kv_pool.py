"""Who uses which slot of the KV pool: a free list, reference counts and an order of eviction, no bytes.

    free        nobody knows what is in it
    referenced  held by sessions and capsules, once or more
    cached      held by nobody, but its content is known and may be asked for again; evicted when room is needed

The same book-keeping serves KV blocks and rows of recurrent state. The bytes lie in the runner.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice


class OutOfBlocks(Exception):
    """The pool can't give what was asked; nothing was allocated."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} blocks wanted, {free} free")
        self.wanted = wanted
        self.free = free


class BlockPool:
    """`size` slots, numbered from 0. Only the engine thread calls it (invariant I1).

    `on_evict` is told the number of a cached slot that is about to be given to somebody else. It may forget
    further cached slots meanwhile.
    """

    def __init__(self, size: int, on_evict: Callable[[int], None] = lambda block: None) -> None:
        self.size = size
        self._on_evict = on_evict
        self._references = [0] * size
        # Popped from the end, so that low numbers go first and the touched part of the pool stays small.
        self._free = list(range(size - 1, -1, -1))
        # Slots whose content is known; True for those that are evicted last.
        self._known: dict[int, bool] = {}
        # Known slots without references, next victim first: ordinary ones, then those that are kept longest.
        self._cached: tuple[OrderedDict[int, None], OrderedDict[int, None]] = (OrderedDict(), OrderedDict())

    @property
    def free(self) -> int:
        """Slots that nobody knows anything of."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Slots that could be given away, at the price of computing their content again."""
        return sum(map(len, self._cached))

    @property
    def used(self) -> int:
        """Slots with references."""
        return self.size - self.free - self.cached

    @property
    def available(self) -> int:
        """Slots that `allocate` can give."""
        return self.free + self.cached

    def next_free(self, count: int) -> Iterator[int]:
        """The slots that `allocate` will give next, at most `count`; cached ones are not among them."""
        return islice(reversed(self._free), count)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds the slot."""
        return self._references[block] == 0

    def held_once(self, blocks: Iterable[int]) -> int:
        """How many of these have a single holder."""
        return sum(self._references[block] == 1 for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` slots with one reference each, evicting cached ones. Raises OutOfBlocks and takes none."""
        if count > self.available:
            raise OutOfBlocks(count, self.available)
        while len(self._free) < count:
            self._evict_one()
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            assert self._references[block] == 0, f"block {block} was free and referenced"
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each; all must be referenced or cached."""
        for block in blocks:
            known = block in self._known
            assert known or self._references[block] > 0, f"block {block} is free and can't be shared"
            if self._references[block] == 0:
                del self._cached[self._known[block]][block]
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops a reference of each. Without any, a known slot is cached, as the last to be evicted of its kind,
        and any other is free."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} was released twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._park(block)

    def remember(self, block: int, keep_longest: bool = False) -> None:
        """Declares the content of a referenced slot known: it will be cached and not freed."""
        assert self._references[block] > 0, f"block {block} is not in use"
        self._known[block] = keep_longest or self._known.get(block, False)

    def forget(self, block: int) -> None:
        """The content of a slot is of no use any more; it is freed unless somebody holds it."""
        kind = self._known.pop(block)
        if self._references[block] == 0:
            del self._cached[kind][block]
            self._free.append(block)

    def touch(self, block: int) -> None:
        """Makes a cached slot the last of its kind to be evicted."""
        if self._references[block] == 0:
            self._cached[self._known[block]].move_to_end(block)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Asserts that the counts are those of `holders` and that free, used and cached slots add up (I4)."""
        self.check_lists()
        self.check_slots(range(self.size), holders)

    def check_lists(self) -> None:
        """Asserts that each slot without references is in exactly one of the lists of idle ones, and no other is."""
        idle = [*self._free, *self._cached[0], *self._cached[1]]
        assert len(set(idle)) == len(idle), "a block is twice among the idle ones"
        assert not any(map(self._references.__getitem__, idle)), "an idle block is referenced"
        assert len(idle) == self._references.count(0), "a block without references is in no list"

    def check_slots(self, slots: range, holders: Iterable[Iterable[int]]) -> None:
        """Asserts that the counts of some slots are those of `holders`, and that what is cached of them is known."""
        held = Counter(block for holder in holders for block in holder if block in slots)
        for block in slots:
            count = self._references[block]
            assert count == held[block], f"block {block}: {count} references, {held[block]} holders"
            if block in self._cached[0] or block in self._cached[1]:
                assert block in self._known, "a cached block is unknown"

    def _park(self, block: int) -> None:
        if block in self._known:
            self._cached[self._known[block]][block] = None
        else:
            self._free.append(block)

    def _evict_one(self) -> None:
        victim = next(iter(self._cached[0] or self._cached[1]))
        self._on_evict(victim)
        if victim in self._known:
            self.forget(victim)
