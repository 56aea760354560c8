"""A reply read in pieces, and what it amounts to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from agentserve.engine.tool_formats.events import (
    CallArguments,
    CallDropped,
    CallEnd,
    CallStart,
    Event,
    Reasoning,
    Text,
    ToolCallParser,
)
from agentserve.engine.tool_formats.formats import by_name
from agentserve.engine.tool_formats.tools import read_tools


class Outcome(NamedTuple):
    """What a client without streaming gets, and the events, with neighbours of one kind joined."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    dropped: list[str]  # the arguments of calls that were taken back
    events: list[Event]


def outcome(events: Iterable[Event]) -> Outcome:
    events = list(_joined(events))
    arguments = {e.index: e.fragment for e in events if isinstance(e, CallArguments)}
    names = {e.index: e.name for e in events if isinstance(e, CallStart)}
    return Outcome(
        "".join(e.text for e in events if isinstance(e, Text)),
        "".join(e.text for e in events if isinstance(e, Reasoning)),
        [(names[e.index], arguments[e.index]) for e in events if isinstance(e, CallEnd)],
        [arguments.get(e.index, "") for e in events if isinstance(e, CallDropped)],
        events,
    )


def _joined(events: Iterable[Event]) -> Iterable[Event]:
    for kind, group in itertools.groupby(events, type):
        parts = list(group)
        if kind is CallArguments:
            (index,) = {e.index for e in parts if isinstance(e, CallArguments)}
            yield CallArguments(index, "".join(e.fragment for e in parts if isinstance(e, CallArguments)))
        elif kind is Text or kind is Reasoning:
            yield kind("".join(e.text for e in parts if isinstance(e, Text | Reasoning)))
        else:
            yield from parts


def read(parser: ToolCallParser, pieces: Iterable[str]) -> Outcome:
    """Feeds the pieces and checks what holds for every stream."""
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish()
    check_order(events)
    return outcome(events)


def check_order(events: Iterable[Event]) -> None:
    """Calls are numbered from 0 and never overlap; no piece is empty."""
    count, is_open = 0, False
    for event in events:
        match event:
            case CallStart(index, id, name):
                assert (index, is_open) == (count, False)
                assert id
                assert name
                count, is_open = count + 1, True
            case CallArguments(index, fragment):
                assert (index, is_open) == (count - 1, True)
                assert fragment
            case CallEnd(index) | CallDropped(index):
                assert (index, is_open) == (count - 1, True)
                is_open = False
            case Text(text) | Reasoning(text):
                assert not is_open
                assert text
    assert not is_open


def _tool(name: str, **types: object) -> dict[str, object]:
    properties = {argument: {"type": kind} for argument, kind in types.items()}
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


TOOLS = read_tools(
    json.dumps(
        [
            _tool("get_weather", city="string", days="integer"),
            _tool(
                "write_file",
                path="string",
                content="string",
                lines=["array", "null"],
                options="object",
                force="boolean",
            ),
            {"name": "now"},
        ]
    )
)


def _new_parser(form: str) -> ToolCallParser:
    numbers = itertools.count()
    return by_name(form).parser(TOOLS, lambda: f"call_{next(numbers)}")


@pytest.fixture(scope="session")
def new_parser() -> Callable[[str], ToolCallParser]:
    """A parser of the format of that name, for the tools above; its calls have the ids call_0, call_1, …"""
    return _new_parser


@pytest.fixture(scope="session")
def read_reply() -> Callable[[ToolCallParser, Iterable[str]], Outcome]:
    return read
