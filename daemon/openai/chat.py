"""OpenAI's chat completions: how their requests are read and their answers put."""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.protocol import Delta, FinishReason, TextDelta
from .chat_schema import parse_chat
from .deltas import delta_object, message_object
from .logprobs import logprobs_object
from .reply import Answer, Reply
from .route import Dialect


class ChatReply(Reply):
    """Answers of `/v1/chat/completions`."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._has_logprobs = answer.choices.requests[0].logprobs is not None
        # All that precedes the text of a delta, encoded once.
        self._open = [
            self.chunk(_delta(index, {"content": ""})).removesuffix(b'""}}]}\n\n')
            for index in range(len(answer.choices.parts))
        ]

    def choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        finished = self.answer.choices.parts[index].finished
        assert finished is not None
        whole = {"index": index, "message": message_object(deltas), "finish_reason": finished.finish_reason}
        return whole | self._logprobs(index)

    def first_frames(self) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join(self.chunk(_delta(index, role)) for index in range(len(self._open)))

    def piece(self, index: int, delta: Delta) -> bytes:
        if self._has_logprobs:
            return self.chunk(_delta(index, delta_object(delta)) | self._logprobs(index))
        if isinstance(delta, TextDelta):
            return b"%b%b}}]}\n\n" % (self._open[index], msgspec.json.encode(delta.text))
        return self.chunk(_delta(index, delta_object(delta)))

    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return _delta(index, {}) | {"finish_reason": reason} | self._logprobs(index)

    def silence(self, index: int) -> dict[str, Any]:
        return _delta(index, {})

    def _logprobs(self, index: int) -> dict[str, Any]:
        """How likely the tokens were that came since the last call, where the request wants to know."""
        if not self._has_logprobs:
            return {}
        return {"logprobs": logprobs_object(self.answer.choices.parts[index].take_logprobs())}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta}


CHAT = Dialect("chatcmpl", parse_chat, ChatReply)
