"""What the conformance suites of both SDKs ask, and the daemons that they ask.

Bodies of chat requests by name: SCRIPTED for the model that says what it is told, SMOLLM2 for a real one.
"""

from __future__ import annotations

from typing import Any

READ: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
PAINT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
TOOLS = [READ, PAINT]
NAMED = {"type": "function", "function": {"name": "paint"}}
READS = '<tool_call>\n{"name": "read", "arguments": {"path": "ä/🦊.py"}}\n</tool_call>'
PAINTS = '<tool_call>\n{"name": "paint", "arguments": {"colour": "blue"}}\n</tool_call>'

SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "trip",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "São Paulo"]}, "days": {"enum": [2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
PROSE = "Grüße aus 日本 🦊\n\nIt  rains."


def told(reply: str, **fields: Any) -> dict[str, Any]:
    """A request that makes the scripted model want to reply this."""
    message = {"role": "user", "content": f"say <reply>{reply}</reply>"}
    return {"model": "reference", "messages": [message], "temperature": 0, **fields}


SCRIPTED: dict[str, dict[str, Any]] = {
    "text": told(PROSE),
    "cut text": told(PROSE, max_tokens=9),
    "stop string": told(PROSE, stop=["  r"]),
    "single call": told(f"I look.\n{READS}", tools=TOOLS),
    "parallel calls": told(f"{READS}\n{PAINTS}", tools=TOOLS),
    "one call at most": told(f"{READS}\n{PAINTS}", tools=TOOLS, parallel_tool_calls=False),
    "required call": told(PAINTS, tools=TOOLS, tool_choice="required", max_tokens=200),
    "named call": told(PROSE, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False, max_tokens=200),
    "schema": told('{"city": "São Paulo", "days": 3}', response_format=SCHEMA),
    "object": told('{"a": [1, null, "ü"]}', response_format={"type": "json_object"}),
    "three choices": told(PROSE, n=3),
    "three choices with calls": told(f"{READS}\n{PAINTS}", tools=TOOLS, n=3),
    "logprobs": told(PROSE, logprobs=True, top_logprobs=2),
    "call with logprobs": told(f"I look.\n{READS}", tools=TOOLS, logprobs=True, top_logprobs=2),
}

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def asked(question: str, **fields: Any) -> dict[str, Any]:
    """A request for the real model."""
    message = {"role": "user", "content": question}
    return {"model": "smollm2", "messages": [message], "temperature": 0, "max_tokens": 10, **fields}


_RAIN = "How is the weather in Oslo over the next 3 days?"
SMOLLM2: dict[str, dict[str, Any]] = {
    "text": asked("Name three colours, and add an emoji."),
    "a tool that is not used": asked(_RAIN, tools=[WEATHER]),
    "required call": asked(
        _RAIN, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=60
    ),
    "named call": asked(
        "Hello!",
        tools=[READ, PAINT],
        tool_choice=NAMED,
        parallel_tool_calls=False,
        max_tokens=60,
    ),
    "schema": asked("I go to Oslo for three days.", response_format=SCHEMA, max_tokens=40),
    "three choices": asked("Tell me of a fox.", n=3, temperature=1, seed=11, max_tokens=6),
    "logprobs": asked("Tell me of a fox.", logprobs=True, top_logprobs=3, max_tokens=8),
}
