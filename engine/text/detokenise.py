"""Tokens → text while they arrive: whole characters only, and nothing behind a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that detokenising needs."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def spelling(self, token_id: int) -> bytes: ...


class Detokenizer:
    """Turns one sequence of tokens into text. What all calls return together equals `decode` of all tokens, but that
    the control tokens `shown` are spelled out."""

    def __init__(self, tokenizer: TokenBytes, shown: AbstractSet[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes, maybe none. Bytes that can't be UTF-8 become U+FFFD."""
        spelled = self._tokenizer.spelling if token_id in self._shown else self._tokenizer.token_bytes
        return self._decoder.decode(spelled(token_id))

    def finish(self) -> str:
        """U+FFFD for a character that was begun and will not be completed, otherwise nothing."""
        return self._decoder.decode(b"", final=True)


class StopResult(NamedTuple):
    """Text that may be shown, and the stop string that ended it."""

    text: str
    matched: str | None


class StopStrings:
    """Cuts a stream of text before the first stop string.

    The match that is complete first wins; of several that end together, the longest. So the result does not
    depend on how the text was cut into pieces. Text is held back only while it may still become a stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises ValueError for an empty stop string."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise ValueError("a stop string is empty")
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """What may be shown now. After a match everything is dropped, and `matched` stays."""
        if self._matched is not None:
            return StopResult("", self._matched)
        text, self._held = self._held + text, ""
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, _, self._matched = min(ends)
            return StopResult(text[: end - len(self._matched)], self._matched)
        shown = len(text) - _possible_beginning(text, self._stops)
        self._held = text[shown:]
        return StopResult(text[:shown], None)

    def finish(self) -> str:
        """The text that was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _possible_beginning(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of `text` with which a stop string begins."""
    longest = min(len(text), max((len(stop) for stop in stops), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
