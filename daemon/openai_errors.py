"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from .errors import CapsuleOverBudget, ContextLengthExceeded, RequestError


def error_object(error: RequestError) -> dict[str, Any]:
    """OpenAI's error envelope; a context overflow and a pin over the budget carry both of their numbers."""
    body: dict[str, Any] = {
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


def stream_error(error: RequestError) -> dict[str, Any]:
    """The error frame of a stream that had begun."""
    body = {"message": error.message, "type": "server_error", "param": None, "code": "streaming_error"}
    return {"error": body}
