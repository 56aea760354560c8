"""Grammars that hold for a part of a reply: for the answer behind the reasoning, or for calls within free text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import Enum, auto

from ..replies.reasoning import ReasoningFormat
from ..text.tokenise import Tokenizer
from .state import FORBIDDEN, BrokenConstraint, ReplyGrammar, Row

# Everything before the channel of the answer, for models that write all into channels.
HARMONY = ReasoningFormat("harmony", "<|channel|>", "<|channel|>final<|message|>", frozenset())
# Line breaks that models put between their reasoning and the answer; they belong to neither.
_MOST_BREAKS = 2


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """What a gate has to know of a model: the token that begins reasoning, if there is one, how reasoning ends, the
    tokens that are nothing but line breaks with how many they are, and the tokens that end a turn."""

    start: int | None
    end: bytes
    breaks: Mapping[int, int]
    ends_of_turn: frozenset[int]


def reasoning_tokens(tokenizer: Tokenizer, form: ReasoningFormat) -> ReasoningTokens:
    """What a gate has to know of a model that reasons in this form. Looks at every token."""
    wanted = {b"\n" * count: count for count in range(1, _MOST_BREAKS + 1)}
    texts = enumerate(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
    breaks = {token: wanted[text] for token, text in texts if text in wanted}
    return ReasoningTokens(_start(tokenizer, form), form.end.encode(), breaks, tokenizer.eos_ids)


def _start(tokenizer: Tokenizer, form: ReasoningFormat) -> int | None:
    """The token that begins reasoning: the whole marker, or a special token that only a marker begins with."""
    whole = tokenizer.id_of(form.start)
    if whole is not None:
        return whole
    begun = (tokenizer.id_of(text) for text in form.tokens if form.start.startswith(text))
    return next(begun, None)


class CallGrammar:
    """Lets any text pass, but holds each call to a grammar from the token `marker` on, with which it begins.

    `begun()` gives the grammar of a call whose marker was written.
    """

    is_complete = False

    def __init__(self, marker: int, begun: Callable[[], ReplyGrammar]) -> None:
        self._marker = marker
        self._begun = begun
        self._call: ReplyGrammar | None = None

    def masked(self, logits: Row) -> Row:
        return logits if self._call is None else self._call.masked(logits)

    def observe(self, token: int) -> None:
        if self._call is None:
            self._call = self._begun() if token == self._marker else None
            return
        self._call.observe(token)
        if self._call.is_complete:
            self._call = None

    def forced(self, most: int) -> tuple[int, ...]:
        return () if self._call is None else self._call.forced(most)

    def allows(self, tokens: Items[int]) -> int:
        return len(tokens) if self._call is None else self._call.allows(tokens)


class _Part(Enum):
    # Nothing is written yet: the answer may begin, or the reasoning.
    START = auto()
    REASONING = auto()
    # Behind the reasoning: the answer may begin, or a line break come.
    BREAKS = auto()
    ANSWER = auto()


class GatedGrammar:
    """Lets reasoning pass, then holds the answer to `grammar`. Reasoning can't end the turn.

    `opened`: the prompt ends within reasoning, so the reply begins there.
    """

    def __init__(
        self, grammar: ReplyGrammar, tokenizer: Tokenizer, tokens: ReasoningTokens, opened: bool
    ) -> None:
        self._grammar = grammar
        self._spelling = tokenizer.spelling
        self._tokens = tokens
        self._part = _Part.REASONING if opened else _Part.START
        # The last of the reasoning, as far as it may be a part of the end marker.
        self._tail = b""
        self._breaks = 0

    @property
    def is_complete(self) -> bool:
        return self._part is _Part.ANSWER and self._grammar.is_complete

    def masked(self, logits: Row) -> Row:
        if self._part is _Part.REASONING:
            logits = logits.copy()
            logits[list(self._tokens.ends_of_turn)] = FORBIDDEN
            return logits
        masked = self._grammar.masked(logits)
        for token in self._outside():
            masked[token] = logits[token]
        return masked

    def observe(self, token: int) -> None:
        if self._part is _Part.REASONING:
            self._reason(self._spelling(token))
        elif token not in self._outside():
            self._part = _Part.ANSWER
            self._grammar.observe(token)
        elif self._part is _Part.START:
            self._part = _Part.REASONING
        else:
            self._breaks += self._tokens.breaks[token]

    def forced(self, most: int) -> tuple[int, ...]:
        return self._grammar.forced(most) if self._part is _Part.ANSWER else ()

    def allows(self, tokens: Items[int]) -> int:
        return self._grammar.allows(tokens) if self._part is _Part.ANSWER else len(tokens)

    def _outside(self) -> frozenset[int]:
        """The tokens that may come now without being a part of the answer."""
        if self._part is _Part.START and self._tokens.start is not None:
            return frozenset({self._tokens.start})
        if self._part is _Part.BREAKS:
            left = _MOST_BREAKS - self._breaks
            return frozenset(token for token, count in self._tokens.breaks.items() if count <= left)
        return frozenset()

    def _reason(self, text: bytes) -> None:
        end = self._tokens.end
        self._tail += text
        reasoning, found, rest = self._tail.partition(end)
        self._tail = reasoning[-len(end) :]
        if not found:
            return
        if rest.strip(b"\n"):
            raise BrokenConstraint("the answer began within the token that ended the reasoning")
        self._part, self._breaks = _Part.BREAKS, len(rest)
