"""Only complete calls, for readers that can't take one back."""

from __future__ import annotations

import itertools

from agentserve.engine.tool_formats.events import CallArguments, CallEnd, CallStart, Text
from agentserve.engine.tool_formats.formats import by_name
from agentserve.engine.tool_formats.parser import WholeCalls
from agentserve.engine.tool_formats.tools import Tools

GOOD = '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'
BROKEN = '<tool_call>{"name": "now", "arguments": {"a": x}}</tool_call>'


def parser() -> WholeCalls:
    numbers = itertools.count(1)
    return WholeCalls(by_name("hermes").parser(Tools({"now": {}}), lambda: f"call_{next(numbers)}"))


def test_a_call_comes_with_its_end() -> None:
    calls = parser()
    assert calls.feed("So." + GOOD[:-1]) == [Text("So.")]
    assert calls.feed(GOOD[-1:]) == [CallStart(0, "call_1", "now"), CallArguments(0, '{"a": 1}'), CallEnd(0)]


def test_a_broken_call_is_text_alone_and_has_no_number() -> None:
    events = parser().feed(f"{BROKEN}{GOOD}")
    assert [type(event) for event in events if not isinstance(event, Text)] == [
        CallStart,
        CallArguments,
        CallEnd,
    ]
    assert "".join(event.text for event in events if isinstance(event, Text)) == BROKEN
    assert CallStart(0, "call_2", "now") in events


def test_a_call_that_breaks_off_is_text_at_the_end() -> None:
    calls = parser()
    assert calls.feed(GOOD[:40]) == []
    assert calls.finish() == [Text(GOOD[:40])]
