"""What drafts are looked up in beyond one request: indexes of texts that may go on, and past texts of a namespace.

An index is borrowed by the sequence that continues its text, cut back to what both have in common and extended, so
that the next turn of a conversation indexes its new tokens only. Nothing crosses from one namespace to another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .suffix_index import SEPARATOR, SuffixIndex

# An index takes about 60 bytes a token and 1.5 MB.
_IDLE_INDEXES, _IDLE_TOKENS = 6, 400_000
_NAMESPACES, _PAST_TOKENS = 8, 32_768


class DraftMemory:
    """Bounded; the least recently used goes first. Only the engine thread calls it."""

    def __init__(self, past_tokens: int = _PAST_TOKENS, idle_indexes: int = _IDLE_INDEXES) -> None:
        self._past_tokens = past_tokens
        self._idle_indexes = idle_indexes
        self._idle: list[tuple[str, SuffixIndex]] = []
        self._past: OrderedDict[str, SuffixIndex] = OrderedDict()

    def borrow(self, namespace: str, tokens: Sequence[int]) -> SuffixIndex:
        """An index of exactly `tokens`, for the caller alone until it is given back."""
        index, common = self._nearest(namespace, tokens)
        if index is None:
            return SuffixIndex(tokens)
        index.truncate(common)
        index.extend(tokens[common:])
        return index

    def give_back(self, namespace: str, index: SuffixIndex) -> None:
        """Keeps an index for whoever continues its text."""
        self._idle.append((namespace, index))
        while len(self._idle) > self._idle_indexes or sum(len(i) for _, i in self._idle) > _IDLE_TOKENS:
            del self._idle[0]

    def past(self, namespace: str) -> SuffixIndex:
        """Texts that `learn` was told in this namespace, the last ones; grows while it is held."""
        if namespace not in self._past:
            self._past[namespace] = SuffixIndex()
            if len(self._past) > _NAMESPACES:
                self._past.popitem(last=False)
        self._past.move_to_end(namespace)
        return self._past[namespace]

    def learn(self, namespace: str, tokens: Sequence[int]) -> None:
        """Adds a text: what a namespace had not seen before, such as tool results and replies."""
        past, half = self.past(namespace), self._past_tokens // 2
        tokens = tokens[-(half - 1) :]
        if len(past) + len(tokens) + 1 > self._past_tokens:
            kept = past.tokens[-half:].tolist()
            past.truncate(0)
            past.extend(kept)
        past.extend([*tokens, SEPARATOR])

    def _nearest(self, namespace: str, tokens: Sequence[int]) -> tuple[SuffixIndex | None, int]:
        """Takes out the idle index that has most in common with `tokens`. Less than half of an index is left to
        whoever continues that text: building anew is dearer for them than for a short text."""
        best, most = None, 0
        for place, (owner, index) in enumerate(self._idle):
            if owner == namespace:
                common = index.common(tokens)
                if common > most and 2 * common >= len(index):
                    best, most = place, common
        if best is None:
            return None, 0
        return self._idle.pop(best)[1], most
