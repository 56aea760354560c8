"""Answers of the Python SDK, whole or streamed, in one form that can be compared, and the schema of one to parse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic import BaseModel, ConfigDict, Field


class Stop(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    nights: int = Field(ge=1, le=99)


class Trip(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "São Paulo"]
    stops: list[Stop] = Field(min_length=1, max_length=2)
    note: str | None = Field(max_length=4)


@dataclass
class Told:
    """What one choice says. `calls` are names and arguments, `ids` those of the calls."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[Any] = field(default_factory=list)
    ids: list[str] = field(default_factory=list, compare=False)


def conforms(answer: openai.BaseModel) -> None:
    """The SDK takes objects as they come; this holds one to the SDK's own types. Raises pydantic.ValidationError."""
    type(answer).model_validate(answer.to_dict(), strict=True)


def whole(answer: ChatCompletion) -> list[Told]:
    """The choices of a whole answer, by their index."""
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [_told(choice) for choice in answer.choices]


def _told(choice: Any) -> Told:
    calls = choice.message.tool_calls or []
    return Told(
        choice.message.content or "",
        [[call.function.name, call.function.arguments] for call in calls],
        choice.finish_reason,
        list(choice.logprobs.content) if choice.logprobs else [],
        [call.id for call in calls],
    )


def folded(chunks: Iterable[ChatCompletionChunk], choices: int = 1) -> list[Told]:
    """The choices of a stream, put together as its pieces come; each must end exactly once."""
    told = [Told() for _ in range(choices)]
    for part in (choice for chunk in chunks for choice in chunk.choices):
        one = told[part.index]
        assert one.finish_reason is None, "nothing follows the end"
        one.text += part.delta.content or ""
        one.finish_reason = part.finish_reason
        if part.logprobs:
            one.logprobs += part.logprobs.content or []
        for piece in part.delta.tool_calls or []:
            _take(one, piece)
    assert all(one.finish_reason for one in told)
    return told


def _take(told: Told, piece: ChoiceDeltaToolCall) -> None:
    """The first piece of a call has its index, id, type and name; the others have arguments alone."""
    assert piece.function is not None
    if piece.index == len(told.calls):
        assert piece.id
        assert piece.function.name
        assert piece.type == "function"
        told.ids.append(piece.id)
        told.calls.append([piece.function.name, ""])
    else:
        assert (piece.id, piece.function.name, piece.type) == (None, None, None)
    told.calls[piece.index][1] += piece.function.arguments or ""
