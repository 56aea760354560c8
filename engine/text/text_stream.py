"""Tokens of one reply to text events: whole characters, stop strings held back and cut."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from .detokenise import Detokenizer, StopStrings
from .tokenise import Tokenizer


class Certain(NamedTuple):
    """Text that nothing can take back, and the stop string that ended the reply, if one did."""

    text: str
    stopped_by: str | None


class TextStream:
    """Holds back half characters and what may become a stop string; the rest is passed on at once.

    Of control tokens only `shown` are text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], shown: AbstractSet[int] = frozenset()
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, shown)
        self._stops = StopStrings(stops)

    def push(self, token: int) -> Certain:
        """The text that became certain with this token; nothing may be pushed after a stop."""
        found = self._stops.push(self._detokenizer.push(token))
        return Certain(found.text, found.matched)

    def finish(self) -> Certain:
        """The text still held back when a reply ends without a stop string, which the rest may complete."""
        last = self._stops.push(self._detokenizer.finish())
        if last.matched is not None:
            return Certain(last.text, last.matched)
        return Certain(last.text + self._stops.finish(), None)
