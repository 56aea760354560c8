"""The grammar of one reply, as far as the reply has been written.

`masked` before a token is chosen and `observe` after it: the grammar moves on with accepted tokens alone, so a draft
that is rejected has never been in it, and nothing has to be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

Row = NDArray[np.float32]
FORBIDDEN = np.float32(-np.inf)


class BrokenConstraint(Exception):
    """The reply can't go on within its grammar, or that would take too long to find out."""


class Grammar(Protocol):
    """Knows which tokens may come next in one reply. One thread calls it."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end of the turn can follow."""
        ...

    def masked(self, logits: Row) -> Row:
        """The logits with minus infinity for every token that may not come next; an end of turn may, where the text
        is whole. Raises BrokenConstraint when none may."""
        ...

    def observe(self, token: int) -> None:
        """`token` became part of the reply. Raises BrokenConstraint when it may not."""
        ...

    def forced(self, most: int) -> tuple[int, ...]:
        """At most `most` tokens that have to come next, whatever the model would say."""
        ...

    def allows(self, tokens: Items[int]) -> int:
        """How many of `tokens`, from the first on, may come next."""
        ...


class ReplyGrammar:
    """A grammar that holds from the first token on."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def copy(self) -> ReplyGrammar:
        """A grammar that is as far as this one, and goes its own way."""
        return ReplyGrammar(self._matcher.deep_copy())

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def masked(self, logits: Row) -> Row:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        size = len(logits)
        allowed = np.unpackbits(bits, count=min(size, 8 * len(bits)), bitorder="little").view(np.bool_)
        if self._matcher.is_error() or not allowed.any():
            raise BrokenConstraint(_reason(self._matcher))
        if len(allowed) < size:
            # Padding rows of the embedding stand for no token.
            allowed = np.pad(allowed, (0, size - len(allowed)))
        return np.where(allowed, logits, FORBIDDEN)

    def observe(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise BrokenConstraint(_reason(self._matcher))

    def forced(self, most: int) -> tuple[int, ...]:
        return tuple(self._matcher.compute_ff_tokens()[:most])

    def allows(self, tokens: Items[int]) -> int:
        return self._matcher.validate_tokens(list(tokens))


def _reason(matcher: LLMatcher) -> str:
    error = matcher.get_error().strip().split("\n", 1)[0]
    return f"the answer can't go on within its grammar: {error or 'no token fits'}"
