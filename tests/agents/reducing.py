"""A request of an agent without its words: roles, kinds of parts, fields and shapes of schemas stay, texts do not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count, cycle, islice
from typing import Any

_WORDS = ("some", "plain", "words", "stand", "here")
_LONGEST = 160
_DESCRIPTION = "Some plain words about it."
# Their values are words of the protocol.
_KEPT = frozenset({"$schema", "enum", "model", "name", "required", "role", "tool_choice", "type"})


def reduced(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with fillers for its texts, at most 160 characters each, and with new ids of its calls."""
    conversation = _Conversation()
    given = {"messages": lambda messages: [conversation.message(message) for message in messages]}
    return {
        key: given.get(key, lambda value, key=key: _shape(value, key))(value) for key, value in body.items()
    }


class _Conversation:
    """Counts its texts, so that each is another, and its calls."""

    def __init__(self) -> None:
        self._texts = count(1)
        self._ids: dict[str, str] = {}

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._field(key, value) for key, value in message.items()}

    def _field(self, key: str, value: Any) -> Any:
        if key == "tool_calls":
            return [self._call(call) for call in value]
        if key == "tool_call_id":
            return self._id(value)
        if isinstance(value, list):
            return [self.message(part) for part in value]
        return self._filler(len(value)) if isinstance(value, str) and key not in _KEPT else value

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = _shape(json.loads(function["arguments"]), "")
        text = json.dumps(arguments, separators=(",", ":"))
        return {**call, "id": self._id(call["id"]), "function": {**function, "arguments": text}}

    def _id(self, given: str) -> str:
        return self._ids.setdefault(given, f"call_{len(self._ids) + 1}")

    def _filler(self, length: int) -> str:
        words = islice(cycle(_WORDS), length)
        return " ".join((str(next(self._texts)), *words))[: min(length, _LONGEST)].rstrip()


def _shape(value: Any, key: str) -> Any:
    """The value with another text for its own, but for those that are kept under their key."""
    if isinstance(value, Mapping):
        return {name: _shape(inner, name) for name, inner in value.items()}
    if key in _KEPT:
        return value
    if isinstance(value, list):
        return [_shape(inner, key) for inner in value]
    return _DESCRIPTION if isinstance(value, str) else value
