"""Ids of tool calls for templates that take only ids of nine letters and digits, as the older ones of Mistral do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from ..protocol import Message, ToolCall

_LENGTH = 9
_FITS = re.compile(r"[A-Za-z0-9]{9}")
# `{% if tool_call.id|length != 9 %}{{ raise_exception(…) }}`
_CHECK = re.compile(r"\bid\s*\|\s*length\s*!=\s*9\b")


def wants_short_ids(template: str) -> bool:
    """Whether a chat template refuses ids of another length."""
    return _CHECK.search(template) is not None


def with_short_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with ids that fit, each id being replaced by the same one everywhere and always."""
    return tuple(
        replace(
            message,
            tool_calls=tuple(ToolCall(_short(c.id), c.name, c.arguments) for c in message.tool_calls),
            tool_call_id=None if message.tool_call_id is None else _short(message.tool_call_id),
        )
        for message in messages
    )


def _short(call_id: str) -> str:
    """The id itself if it fits, else nine hexadecimal digits of its BLAKE2b digest."""
    if _FITS.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "replace")).hexdigest()[:_LENGTH]
