"""Finds where the last tokens of a text stood before: in the text itself or in another one.

Windows of 1, 2, 4, … 32 tokens are hashed, each length (a level) into a table of its own, as LZ77 does: `heads` has
the last position of a slot, `previous` the position before it. A window's hash comes from those of its halves,

    hash(2n, i) = hash(n, i) · m + hash(n, i - n)    (mod 2³²)

so a token costs a few operations a level, and a long prompt some vector operations. A hit is compared token by token,
so that a hash that two windows share costs time only. Neither adding nor finding depends on the length of the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVELS = (1, 2, 4, 8, 16, 32)
# Stands between texts that do not belong together; no match and no continuation crosses it.
SEPARATOR = -1

_SLOT_BITS = 16
_SHIFT, _MASK = 32 - _SLOT_BITS, (1 << 32) - 1
# Odd numbers without a pattern, one to hash a token and one for each doubling (splitmix64's, cut to 32 bits).
_FIRST, *_DOUBLE = (0x9E3779B1, 0xBF58476D, 0x94D049BB, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)
# A slot's positions that are looked at, latest first, and how many of those that match are weighed.
_VISITED, _WEIGHED = 24, 8
_BULK = 48


class Found(NamedTuple):
    """A continuation, and the number of tokens before it that are known to agree: one of LEVELS."""

    tokens: tuple[int, ...]
    level: int


class SuffixIndex:
    """A text of token ids that can be asked what followed its last tokens earlier. One thread at a time."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.count = 0
        self._heads = np.full((len(LEVELS), 1 << _SLOT_BITS), -1, np.int32)
        self._head_views = [row.data for row in self._heads]
        self._allocate(max(1024, 2 * len(tokens)))
        self.extend(tokens)

    def __len__(self) -> int:
        return self.count

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All tokens, int32 [count]; a view that is valid until the next change."""
        return self._tokens[: self.count]

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, ids from 0 or SEPARATOR."""
        start, end = self.count, self.count + len(tokens)
        if end > len(self._tokens):
            self._grow(end)
        self._tokens[start:end] = tokens
        self.count = end
        if len(tokens) >= _BULK:
            self._index_all(start, end)
        else:
            for position in range(start, end):
                self._index(position)

    def truncate(self, count: int) -> None:
        """Forgets all tokens from position `count` on, as if they had never been there."""
        for level, length in enumerate(LEVELS):
            first = max(count, length - 1)
            if first < self.count:
                # From the end, so that the earliest of a slot is written last: what was before it comes back.
                gone = slice(self.count - 1, first - 1 if first else None, -1)
                slots = self._hashes[level, gone] >> _SHIFT
                self._heads[level, slots] = self._previous[level, gone]
        self.count = count

    def common(self, tokens: Sequence[int]) -> int:
        """The length of the longest common beginning with `tokens`."""
        most = min(self.count, len(tokens))
        differing = np.flatnonzero(self._tokens[:most] != np.asarray(tokens[:most], np.int32))
        return int(differing[0]) if len(differing) else most

    def continuation(self, query: SuffixIndex, most: int, shortest: int = 1) -> Found | None:
        """What followed the last tokens of `query` in this text, at most `most` tokens; None when nothing did.

        The longest match counts, of those that are equally long what followed most often, of those the latest.
        `query` may be this index itself. `shortest` is the least level to accept.
        """
        for level in range(len(LEVELS) - 1, -1, -1):
            length = LEVELS[level]
            if length < shortest:
                break
            if length <= query.count and (ends := self._matches(query, level)):
                if len(ends) > 1:
                    ends = self._longest(ends, query, 2 * length)
                tokens = self._following(self._likeliest(ends), most)
                if query is self:
                    # What repeats itself goes on repeating itself: the text may end before the draft does.
                    tokens = (tokens * most)[:most] if len(tokens) < most else tokens
                return Found(tokens, length) if tokens else None
        return None

    def _matches(self, query: SuffixIndex, level: int) -> list[int]:
        """Positions behind earlier windows that equal the last one of `query`, the latest first."""
        length, last = LEVELS[level], query.count - 1
        wanted = query._token_view[last + 1 - length : last + 1]
        previous, tokens, ends = self._previous_views[level], self._token_view, list[int]()
        if query is self:
            position = previous[last]
        else:
            position = self._head_views[level][query._hash_views[level][last] >> _SHIFT]
        for _ in range(_VISITED):
            if position < 0:
                break
            # Right behind a window there may be nothing yet, when another text is asked.
            if position + 1 < self.count and tokens[position + 1 - length : position + 1] == wanted:
                ends.append(position + 1)
                if len(ends) == _WEIGHED:
                    break
            position = previous[position]
        return ends

    def _longest(self, ends: list[int], query: SuffixIndex, length: int) -> list[int]:
        """Those of `ends` whose match is longest, to a power of two, from `length` on."""
        while len(ends) > 1 and length <= query.count:
            wanted = query._token_view[query.count - length : query.count]
            longer = [end for end in ends if end >= length and self._token_view[end - length : end] == wanted]
            if not longer:
                break
            ends, length = longer, 2 * length
        return ends

    def _likeliest(self, ends: list[int]) -> int:
        """The latest of the positions whose token is the most frequent."""
        if len(ends) == 1:
            return ends[0]
        counts = Counter(self._token_view[end] for end in ends)
        return max(ends, key=lambda end: (counts[self._token_view[end]], end))

    def _following(self, start: int, most: int) -> tuple[int, ...]:
        piece = tuple(self._token_view[start : min(start + most, self.count)])
        return piece[: piece.index(SEPARATOR)] if SEPARATOR in piece else piece

    def _index(self, position: int) -> None:
        value = self._token_view[position] * _FIRST & _MASK
        for level, length in enumerate(LEVELS):
            if position < length - 1:
                break
            hashes = self._hash_views[level]
            if level:
                half = self._hash_views[level - 1]
                value = (half[position] * _DOUBLE[level - 1] + half[position - length // 2]) & _MASK
            hashes[position] = value
            heads, slot = self._head_views[level], value >> _SHIFT
            self._previous_views[level][position] = heads[slot]
            heads[slot] = position

    def _index_all(self, start: int, end: int) -> None:
        """`_index` for positions start to end, by vector operations."""
        for level, length in enumerate(LEVELS):
            first = max(start, length - 1)
            if first >= end:
                break
            if level:
                half, back = self._hashes[level - 1], length // 2
                earlier = half[first - back : end - back]
                value = half[first:end] * np.uint32(_DOUBLE[level - 1]) + earlier
            else:
                value = self._tokens[first:end].astype(np.uint32) * np.uint32(_FIRST)
            self._hashes[level, first:end] = value
            self._link(level, first, value)

    def _link(self, level: int, first: int, hashes: NDArray[np.uint32]) -> None:
        """Puts consecutive positions from `first` on into the chains of their slots."""
        slots = (hashes >> _SHIFT).astype(np.uint16)
        # Positions of a slot stand together, in their order; for 16 bits NumPy's stable sort is a radix sort.
        order = np.argsort(slots, kind="stable").astype(np.int32)
        grouped, positions = slots[order], order + np.int32(first)
        before = self._heads[level, grouped]
        follows = grouped[1:] == grouped[:-1]
        before[1:][follows] = positions[:-1][follows]
        self._previous[level, positions] = before
        # The last of a slot stands last, and the last assignment holds.
        self._heads[level, grouped] = positions

    def _grow(self, needed: int) -> None:
        tokens, hashes, previous = self._tokens, self._hashes, self._previous
        self._allocate(2 * needed)
        self._tokens[: self.count] = tokens[: self.count]
        self._hashes[:, : self.count] = hashes[:, : self.count]
        self._previous[:, : self.count] = previous[:, : self.count]

    def _allocate(self, capacity: int) -> None:
        self._tokens = np.empty(capacity, np.int32)
        self._hashes = np.zeros((len(LEVELS), capacity), np.uint32)
        self._previous = np.full((len(LEVELS), capacity), -1, np.int32)
        # Views give Python integers several times faster than arrays do.
        self._token_view = self._tokens.data
        self._hash_views = [row.data for row in self._hashes]
        self._previous_views = [row.data for row in self._previous]
