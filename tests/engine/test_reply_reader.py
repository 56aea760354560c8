"""From tokens to text, reasoning and calls, with what ends a reply."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from agentserve.engine.protocol import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    Delta,
    GenerateRequest,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from agentserve.engine.replies.formats import find_formats
from agentserve.engine.replies.reader import Read, ReplyReader, deltas
from agentserve.engine.replies.reasoning import REASONING_FORMATS as KNOWN_REASONING
from agentserve.engine.tool_formats.events import CallArguments, CallEnd, CallStart, Event, Reasoning, Text
from agentserve.engine.tool_formats.formats import FORMATS
from scripted_model import TEMPLATES, scripted_tokenizer

TOKENIZER = scripted_tokenizer()
TOOLS = json.dumps([{"type": "function", "function": {"name": "f"}}])
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def reader(template: str = "hermes", prompt: str = "", **fields: object) -> ReplyReader:
    request = GenerateRequest("r", (Message("user", "?"),), **{"tools_json": TOOLS, **fields})  # type: ignore[arg-type]
    formats = find_formats(TEMPLATES[template], TOKENIZER)
    return formats.reader(TOKENIZER, request, TOKENIZER.encode(prompt))


def read(reply: ReplyReader, text: str) -> Read:
    """All that a reply comes to; ends where the reader says so."""
    events: list[Event] = []
    for token in TOKENIZER.encode(text):
        found = reply.push(token)
        events += found.events
        if found.stopped_by is not None or found.is_enough:
            return Read(events, found.stopped_by, found.is_enough)
    last = reply.finish()
    return Read([*events, *last.events], last.stopped_by)


def text(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def test_a_control_token_is_text_only_where_a_parser_needs_it() -> None:
    assert text(read(reader(), "a<tool_call>b").events) == "a<tool_call>b"
    assert text(read(reader(tools_json=None), "a<tool_call>b").events) == "ab"
    assert text(read(reader(), "a<think>b").events) == "ab"


def test_calls_are_counted() -> None:
    reply = reader()
    read(reply, CALL + CALL)
    assert reply.calls == 2


def test_one_call_is_enough_where_no_more_are_wanted() -> None:
    reply = reader(parallel_tool_calls=False)
    found = read(reply, f"{CALL}{CALL} more")
    assert found.is_enough
    assert [type(event) for event in found.events] == [CallStart, CallArguments, CallEnd]
    assert (reply.calls, reply.finish()) == (1, Read([]))


def test_a_stop_string_gives_back_what_the_parser_held() -> None:
    found = read(reader(stop=("END",)), 'a <tool_call>{"name"END: more')
    assert (text(found.events), found.stopped_by) == ('a <tool_call>{"name"', "END")


def test_a_stop_string_may_be_complete_only_at_the_end() -> None:
    found = read(reader(stop=("\ufffd",)), "ok")
    assert (text(found.events), found.stopped_by) == ("ok", None)
    reply = reader(stop=("\ufffd",))
    reply.push(TOKENIZER.encode("é")[0])
    assert reply.finish() == Read([], "\ufffd")


def test_a_bare_prompt_has_a_reply_of_text_alone() -> None:
    request = GenerateRequest("r", prompt="x", tools_json=TOOLS)
    bare = find_formats(TEMPLATES["thinking"], TOKENIZER).reader(TOKENIZER, request, ())
    assert text(read(bare, f"a {CALL}").events) == 'a {"name": "f", "arguments": {}}'


def test_a_prompt_that_opens_the_reasoning_is_seen() -> None:
    for prompt, reasoning in (("<think>\n", "hm"), ("</think>\n\n", ""), ("", "")):
        found = read(reader("thinking", prompt), "hm</think>so")
        assert "".join(e.text for e in found.events if isinstance(e, Reasoning)) == reasoning


def test_messages_join_what_belongs_together_and_count_tokens_once() -> None:
    events = [Reasoning("a"), Reasoning("b"), Text("c"), CallStart(0, "call_1", "f"), CallArguments(0, "{")]
    events += [CallArguments(0, "}"), CallEnd(0), Text("d"), Text("e")]
    sent: list[Delta] = [
        ReasoningDelta("r", "ab", 9),
        TextDelta("r", "c", 0),
        ToolCallDelta("r", 0, "", 0, "call_1", "f"),
        ToolCallDelta("r", 0, "{", 0),
        ToolCallDelta("r", 0, "}", 0),
        TextDelta("r", "de", 0),
    ]
    assert list(deltas("r", events, 9)) == sent
    assert list(deltas("r", [CallEnd(0)], 9)) == []


def test_settings_know_the_names_of_all_formats() -> None:
    assert tuple(known.name for known in FORMATS) == TOOL_FORMATS
    assert tuple(known.name for known in KNOWN_REASONING) == REASONING_FORMATS


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"), [("hermes", "hermes", None), ("thinking", "hermes", "think")]
)
def test_formats_are_found_chosen_and_switched_off(
    template: str, calls: str | None, reasoning: str | None
) -> None:
    for choice, expected in (
        ("auto", (calls, reasoning)),
        ("none", (None, None)),
        ("mistral", ("mistral",) * 2),
    ):
        found = find_formats(TEMPLATES[template], TOKENIZER, choice, choice)
        names = tuple(form.name if form else None for form in (found.calls, found.reasoning))
        assert names == expected


@pytest.mark.parametrize("name", ["tool_format", "reasoning_format"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"is called 'nope'; there are .*mistral"):
        find_formats("", TOKENIZER, **{name: "nope"})


def test_harmony_goes_on_behind_the_end_of_a_message() -> None:
    ends = {TOKENIZER.id_of(name) for name in ("<|im_end|>", "<|call|>", "<|return|>")}
    assert TOKENIZER.eos_ids == ends
    assert TOKENIZER.id_of("<|end|>") not in {None, *ends}


def test_a_template_that_takes_one_call_in_a_turn_ends_the_reply_with_it() -> None:
    template = TEMPLATES["hermes"] + "{# This model only supports single tool-calls at once! #}"
    formats = find_formats(template, TOKENIZER)
    request = GenerateRequest("r", (Message("user", "?"),), tools_json=TOOLS)
    assert read(formats.reader(TOKENIZER, request, ()), CALL + CALL).is_enough
