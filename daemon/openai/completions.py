"""OpenAI's older completions: how their answers are put. Their stream has whole texts in place of deltas."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from ...engine.protocol import Delta, FinishReason, TextDelta, TokenLogprob
from .completions_schema import parse_completion
from .reply import Answer, Reply
from .route import Dialect


class TextOffsets:
    """Where tokens begin in the text of a choice, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def next(self, token: bytes) -> int:
        """Where this token begins; one that begins within a character begins where that does."""
        begin = self._characters
        self._characters += len(self._decoder.decode(token))
        return begin


class TextReply(Reply):
    """Answers of `/v1/completions`."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._has_logprobs = answer.choices.requests[0].logprobs is not None
        self._offsets = [TextOffsets() for _ in answer.choices.parts]

    def choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        finished = self.answer.choices.parts[index].finished
        assert finished is not None
        text = self._echoed(index) + "".join(map(_text, deltas))
        return self._choice(index, text, finished.finish_reason)

    def first_frames(self) -> bytes:
        echoed = enumerate(map(self._echoed, range(len(self._offsets))))
        return b"".join(self.chunk(self._choice(index, text, None)) for index, text in echoed if text)

    def piece(self, index: int, delta: Delta) -> bytes:
        return self.chunk(self._choice(index, _text(delta), None))

    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return self._choice(index, "", reason)

    def silence(self, index: int) -> dict[str, Any]:
        return _choice(index, "", None)

    def _echoed(self, index: int) -> str:
        accepted = self.answer.choices.parts[index].accepted
        return (accepted.prompt_text if accepted else None) or ""

    def _choice(self, index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        choice = _choice(index, text, reason)
        if not self._has_logprobs:
            return choice
        tokens = self.answer.choices.parts[index].take_logprobs()
        return choice | {"logprobs": logprobs_object(tokens, self._offsets[index])}


def logprobs_object(tokens: Iterable[TokenLogprob], offsets: TextOffsets) -> dict[str, Any]:
    """The `logprobs` of a choice as the older API has them: one list for each fact."""
    tokens = tuple(tokens)
    return {
        "tokens": [_spelled(token.text) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{_spelled(text): logprob for text, logprob in token.top} for token in tokens],
        "text_offset": [offsets.next(token.text) for token in tokens],
    }


def _spelled(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _choice(index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
    # The official SDK has no default for the reason: null has to be said.
    return {"index": index, "text": text, "finish_reason": reason}


def _text(delta: Delta) -> str:
    assert isinstance(delta, TextDelta), "the reply to a bare prompt is text alone"
    return delta.text


COMPLETIONS = Dialect("cmpl", parse_completion, TextReply)
