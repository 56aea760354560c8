"""Where drafts come from: guesses of the tokens that the model will choose next.

A drafter looks and never decides: how much of a draft is worth verifying is `length`'s business, and whether it
was right is the model's. So a bad draft costs time and can't change a text. These drafters look things up, which takes
next to no time; the one that computes is in `model_drafter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .suffix_index import LEVELS, Found, SuffixIndex

# The shortest match that is worth the name. What follows after fewer tokens is a guess.
SHORTEST_MATCH = 4


class Source(NamedTuple):
    """Who made a draft, and after how many matching tokens: drafts of one source are equally good."""

    drafter: str
    level: int


# The sources that know no match.
GRAMMAR = Source("grammar", 0)
MODEL = Source("model", 0)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow, at least one."""

    tokens: tuple[int, ...]
    source: Source

    def first(self, count: int) -> Draft:
        """The draft cut to at most `count` tokens."""
        return self if count >= len(self.tokens) else Draft(self.tokens[:count], self.source)


class Drafter(Protocol):
    """Guesses for one sequence. One thread calls it."""

    def draft(self, most: int) -> Draft | None:
        """At most `most` tokens that may follow all that is known of the sequence; None without an idea."""
        ...


class ForcedDrafter:
    """Tokens that a grammar leaves no choice about; `forced(most)` names them. They are always right."""

    def __init__(self, forced: Callable[[int], tuple[int, ...]]) -> None:
        self._forced = forced

    def draft(self, most: int) -> Draft | None:
        tokens = self._forced(most)[:most]
        return Draft(tokens, GRAMMAR) if tokens else None


class HistoryDrafter:
    """What followed the last tokens earlier: in the sequence's own text, or else in past texts of its namespace.

    The longer match counts, of equal ones the own text's. `text` is kept up to date by the caller.
    """

    def __init__(self, text: SuffixIndex, past: SuffixIndex) -> None:
        self._text = text
        self._past = past

    def draft(self, most: int) -> Draft | None:
        own = self._text.continuation(self._text, most)
        past = self._past_one(own, most)
        if past is not None:
            return Draft(past.tokens, Source("past", past.level))
        if own is None:
            return None
        return Draft(own.tokens, Source("suffix" if own.level >= SHORTEST_MATCH else "guess", own.level))

    def _past_one(self, own: Found | None, most: int) -> Found | None:
        """A continuation in past texts, if its match is longer."""
        shortest = max(SHORTEST_MATCH, 2 * own.level if own else 0)
        if shortest > LEVELS[-1]:
            return None
        return self._past.continuation(self._text, most, shortest)


class AllowedDrafter:
    """The drafts of another drafter up to the first token that a grammar forbids; `allows(tokens)` says how many it
    allows."""

    def __init__(self, drafter: Drafter, allows: Callable[[tuple[int, ...]], int]) -> None:
        self._drafter = drafter
        self._allows = allows

    def draft(self, most: int) -> Draft | None:
        draft = self._drafter.draft(most)
        count = self._allows(draft.tokens) if draft is not None else 0
        return draft.first(count) if draft is not None and count else None


def first_draft(drafters: Iterable[Drafter], most: int) -> Draft | None:
    """The draft of the first drafter that has one."""
    return next((draft for drafter in drafters if (draft := drafter.draft(most))), None)
