"""Text → tokens in stretches, each remembered: what of a prompt was tokenised before is not tokenised again.

    text        <|im_start|>system … │ <|im_end|>\\n │ <|im_start|>user …
    stretches   ├─────────────────────┼─────────────┼──────────────────┤

A stretch begins at the text of a control token. No other token goes over such a place, so the tokens of the stretches
together are those of the text.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_CHARACTERS = 1 << 22
# What remembering costs beside the text itself, in characters' worth of memory.
_ENTRY = 256


class Encoded(NamedTuple):
    """Tokens, and for each the position in the text, in characters, where it ends."""

    ids: NDArray[np.int32]
    ends: NDArray[np.int32]


class StretchEncoder:
    """Encodes texts with `encode`, stretch by stretch, and remembers the latest ones. Any thread may call it."""

    def __init__(self, encode: Callable[[str], Encoded], control_texts: Sequence[str]) -> None:
        # Of two that begin alike, the longer one is the token.
        longest_first = sorted(control_texts, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if control_texts else None
        self._encode = encode
        self._known: OrderedDict[str, Encoded] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def encode(self, text: str) -> Encoded:
        """The tokens of a text, as `encode` gives them for the whole of it."""
        parts = [(start, self._stretch(text[start:end])) for start, end in self._bounds(text)]
        ids = [part.ids for _, part in parts]
        ends = [part.ends + np.int32(start) for start, part in parts]
        nothing = np.zeros(0, np.int32)
        return Encoded(np.concatenate([nothing, *ids]), np.concatenate([nothing, *ends]))

    def _bounds(self, text: str) -> Iterator[tuple[int, int]]:
        begins = [match.start() for match in self._control.finditer(text)] if self._control else []
        starts = [0, *(begin for begin in begins if begin)]
        yield from zip(starts, [*starts[1:], len(text)], strict=True)

    def _stretch(self, text: str) -> Encoded:
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        encoded = self._encode(text)
        with self._lock:
            self._remember(text, encoded)
        return encoded

    def _remember(self, text: str, encoded: Encoded) -> None:
        if text in self._known:
            return
        self._known[text] = encoded
        self._size += len(text) + _ENTRY
        while self._size > _MOST_CHARACTERS:
            oldest, _ = self._known.popitem(last=False)
            self._size -= len(oldest) + _ENTRY
