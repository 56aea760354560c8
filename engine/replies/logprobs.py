"""How likely each token of a reply was, told with the text that it is a part of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..messages.logprobs import TokenLogprob
from ..text.detokenise import Detokenizer, StopStrings
from ..text.tokenise import Tokenizer
from .sampling import largest

Row = NDArray[np.float32]


class LogprobTrail:
    """The tokens of one reply whose text is not certain yet. A token of a stop string is never told."""

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str], top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        # Tokens with the position of the character at which they begin.
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._characters = 0
        self._certain = 0

    def push(self, token: int, logits: Row) -> None:
        """`token` was chosen with these logits, float32 [vocab_size]."""
        self._waiting.append((self._characters, token_logprob(self._tokenizer, token, logits, self._top)))
        text = self._detokenizer.push(token)
        self._characters += len(text)
        self._certain += len(self._stops.push(text).text)

    def take(self) -> tuple[TokenLogprob, ...]:
        """The tokens whose text has become certain, at least its beginning."""
        taken = []
        while self._waiting and self._waiting[0][0] < self._certain:
            taken.append(self._waiting.popleft()[1])
        return tuple(taken)

    def finish(self) -> tuple[TokenLogprob, ...]:
        """The rest, at the end of a reply; without those that a stop string is made of."""
        last = self._stops.push(self._detokenizer.finish())
        self._certain += len(last.text)
        if last.matched is not None:
            return self.take()
        rest = tuple(entry for _, entry in self._waiting)
        self._waiting.clear()
        return rest


def token_logprob(tokenizer: Tokenizer, token: int, logits: Row, top: int) -> TokenLogprob:
    """What the logits say of a token and of the `top` likeliest ones."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best = largest(values, top) if top else ()
    return TokenLogprob(
        tokenizer.spelling(token),
        float(values[token]),
        tuple((tokenizer.spelling(int(one)), float(values[one])) for one in best),
    )
