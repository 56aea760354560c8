"""The tools of a chat request, its choice among them, and the calls in its history: OpenAI's shapes, made the engine's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from ...engine.protocol import Message, ToolCall
from ..errors import InvalidRequest
from ..http.json_body import json_text

MAX_NAME = 256
"""Characters of a tool's name; a longer one could not be called."""

WORDS = ("auto", "none", "required")
_CHOICES = f"{', '.join(map(repr, WORDS))} or a function that is named"


class FunctionCall(msgspec.Struct):
    """What a tool call calls; `arguments` is JSON as text, or the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class AssistantToolCall(msgspec.Struct):
    """A tool call that the assistant made in an earlier turn."""

    function: FunctionCall
    id: str | None = None


class Offer(NamedTuple):
    """The tools that the model is told of, as a JSON list, and those of them of which it must call one."""

    tools_json: str | None = None
    required: tuple[str, ...] = ()


def offer(tools: Sequence[dict[str, Any]] | None, choice: Any) -> Offer:
    """What `tools` and `tool_choice` come to. Raises InvalidRequest, which names the field at fault.

    With the choice `none` the model is told of no tools. Hosted tools such as web_search are in every request of some
    agents and mean nothing here, so they are left out.
    """
    functions = {
        f"tools[{index}]": tool
        for index, tool in enumerate(tools or ())
        if tool.get("type", "function") == "function"
    }
    names = [_name(tool, where) for where, tool in functions.items()]
    word, wanted = _choice(choice)
    if wanted is not None and wanted not in names:
        raise _invalid(f"tool_choice: there is no tool {wanted!r} in tools", "tool_choice")
    if word == "required" and not names:
        raise _invalid("tool_choice: 'required' needs tools", "tool_choice")
    if word == "none" or not functions:
        return Offer()
    required = (wanted,) if wanted is not None else tuple(names) if word == "required" else ()
    return Offer(json_text(list(functions.values())), required)


def call_of_history(call: AssistantToolCall) -> ToolCall:
    """A call that came back, with its arguments as JSON text."""
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = json_text(arguments or {})
    return ToolCall(call.id or "", call.function.name, arguments)


def with_names(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages; a result gets the name of its tool, which some templates want and few clients send.

    Raises InvalidRequest for the result of a call that no message before it made.
    """
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        names |= {call.id: call.name for call in message.tool_calls}
        call_id = message.tool_call_id
        if message.role != "tool" or not call_id:
            yield message
        elif call_id in names:
            yield replace(message, name=message.name or names[call_id])
        elif "" in names:
            # A client that gives its calls no ids.
            yield message
        else:
            where = f"messages[{index}].tool_call_id"
            reason = f"{where}: no call before it has the id {call_id[:64]!r}"
            raise InvalidRequest(reason, param=where, code="unknown_tool_call_id")


def _name(tool: dict[str, Any], where: str) -> str:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _invalid(f"{where}.function: expected an object", f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        where = f"{where}.function.name"
        raise _invalid(f"{where}: expected a name of 1 to {MAX_NAME} characters", where)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        where = f"{where}.function.parameters"
        raise _invalid(f"{where}: expected a JSON Schema, which is an object", where)
    return name


def _choice(choice: Any) -> tuple[str, str | None]:
    """The word of a choice, or `required` and the name of a function."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str) and choice in WORDS:
        return choice, None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return "required", function["name"]
    raise _invalid(f"tool_choice: expected {_CHOICES}", "tool_choice")


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
