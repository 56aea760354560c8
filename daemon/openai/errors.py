"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ..errors import CapsuleOverBudget, ContextLengthExceeded, RequestError


class ErrorObject(TypedDict):
    """OpenAI's error. The first two numbers, in tokens, come with a context overflow, the last two with a pin over
    the budget."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]
    wanted_bytes: NotRequired[int]
    free_bytes: NotRequired[int]


class ErrorEnvelope(TypedDict):
    """The body of every answer that is an error."""

    error: ErrorObject


def error_object(error: RequestError) -> ErrorEnvelope:
    """OpenAI's error envelope; a context overflow and a pin over the budget carry both of their numbers."""
    body: ErrorObject = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if isinstance(error, ContextLengthExceeded):
        body |= {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context_length}
    if isinstance(error, CapsuleOverBudget):
        body |= {"wanted_bytes": error.wanted_bytes, "free_bytes": error.free_bytes}
    return {"error": body}


def stream_error(error: RequestError) -> ErrorEnvelope:
    """The error frame of a stream that had begun."""
    body: ErrorObject = {
        "message": error.message,
        "type": "server_error",
        "param": None,
        "code": "streaming_error",
    }
    return {"error": body}
