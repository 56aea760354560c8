"""The pieces of an answer as objects of OpenAI's chat completions: in the deltas of a stream, and in one message.

Reasoning has both of the names that clients look for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from ...engine.protocol import Delta, ReasoningDelta, TextDelta, ToolCallDelta


def joined(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """The pieces, with neighbours of text or of reasoning made one."""
    for _, group in groupby(deltas, _place):
        first, *others = group
        if isinstance(first, ToolCallDelta):
            yield from (first, *others)
        else:
            text = first.text + "".join(one.text for one in others if not isinstance(one, ToolCallDelta))
            yield type(first)(first.request_id, text, first.tokens)


def _place(delta: Delta) -> type[Delta]:
    return type(delta)


def delta_object(delta: Delta) -> dict[str, Any]:
    """What a frame's `delta` says. The first piece of a call has its id, type and name."""
    match delta:
        case TextDelta():
            return {"content": delta.text}
        case ReasoningDelta():
            return _reasoning(delta.text)
        case ToolCallDelta():
            return {"tool_calls": [_call_piece(delta)]}


def message_object(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The whole answer. `content` is null when there is nothing but calls; what there is none of has no key."""
    deltas = tuple(deltas)
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    calls = _calls(delta for delta in deltas if isinstance(delta, ToolCallDelta))
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if reasoning:
        message |= _reasoning(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text}


def _call_piece(delta: ToolCallDelta) -> dict[str, Any]:
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def _calls(pieces: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    calls = []
    for _, group in groupby(pieces, lambda piece: piece.index):
        first, *others = group
        arguments = first.arguments + "".join(piece.arguments for piece in others)
        function = {"name": first.name, "arguments": arguments}
        calls.append({"id": first.id, "type": "function", "function": function})
    return calls
