"""What comes when: text at once, calls while they are written, and what is taken back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from agentserve.engine.tool_formats.events import CallArguments, CallDropped, CallEnd, CallStart, Text
from agentserve.engine.tool_formats.formats import FORMATS, by_name
from agentserve.engine.tool_formats.tools import Tools

New = Callable[[str], Any]
Read = Callable[..., Any]


@pytest.mark.parametrize("form", [form.name for form in FORMATS])
def test_text_without_a_call_is_shown_at_once(form: str, new_parser: New) -> None:
    parser = new_parser(form)
    assert parser.feed("It ") == [Text("It ")]
    assert parser.feed("rains.") == [Text("rains.")]
    assert parser.finish() == []


def test_only_a_possible_marker_is_held_back(new_parser: New) -> None:
    parser = new_parser("hermes")
    assert parser.feed("a <tool") == [Text("a ")]
    assert parser.feed("box") == [Text("<toolbox")]
    assert parser.feed("\n<tool_cal") == []
    assert parser.finish() == [Text("\n<tool_cal")]


def test_a_call_streams_while_it_is_written(new_parser: New) -> None:
    parser = new_parser("hermes")
    assert parser.feed('<tool_call>{"name": "get_weather"') == [CallStart(0, "call_0", "get_weather")]
    assert parser.feed(', "arguments": {"city": "Os') == [CallArguments(0, '{"city": "O')]
    assert parser.feed("lo") == [CallArguments(0, "sl")]
    assert parser.feed('"}}') == [CallArguments(0, 'o"')]
    assert parser.feed("\n</tool_call>") == [CallArguments(0, "}"), CallEnd(0)]


def test_a_string_in_an_untyped_format_streams_while_it_is_written(new_parser: New) -> None:
    parser = new_parser("qwen3_coder")
    parser.feed("<tool_call><function=write_file><parameter=content>\n")
    assert parser.feed('say "hi') == [CallArguments(0, '"say \\"h')]


def test_a_call_that_breaks_off_is_taken_back_with_its_whole_text(new_parser: New) -> None:
    parser = new_parser("hermes")
    parser.feed('\n<tool_call>{"name": "now", "arguments": {')
    assert parser.finish() == [CallDropped(0), Text('\n<tool_call>{"name": "now", "arguments": {')]


def test_a_call_that_goes_wrong_is_taken_back_at_that_very_character(new_parser: New) -> None:
    parser = new_parser("hermes")
    parser.feed('<tool_call>{"name": "now", "arguments": {"a": ')
    dropped, *texts = parser.feed("x")
    assert dropped == CallDropped(0)
    assert "".join(event.text for event in texts) == '<tool_call>{"name": "now", "arguments": {"a": x'


def test_a_call_whose_end_tells_itself_is_complete_without_a_marker(new_parser: New) -> None:
    parser = new_parser("mistral")
    assert parser.feed("[TOOL_CALLS]now[ARGS]{}")[-1] == CallEnd(0)


def test_ids_are_fresh_and_of_the_usual_form() -> None:
    parser = by_name("hermes").parser(Tools({}))
    events = parser.feed('<tool_call>{"name": "now"}</tool_call>' * 50)
    ids = [event.id for event in events if isinstance(event, CallStart)]
    assert len(set(ids)) == 50
    assert all(id.startswith("call_") and len(id) == 29 for id in ids)


@pytest.mark.parametrize(
    ("form", "reply"),
    [
        ("glm", "<tool_call>now<arg_key>{}</arg_key><arg_value>1</arg_value></tool_call>"),
        ("mistral", "[TOOL_CALLS]{}[ARGS]{{}}"),
        ("harmony", "<|channel|>{0}{0}<|message|>text"),
    ],
)
@pytest.mark.parametrize("length", range(244, 260))
def test_limits_do_not_depend_on_how_a_reply_is_split(
    form: str, reply: str, length: int, new_parser: New, read_reply: Read
) -> None:
    text = reply.format("x" * length)
    assert read_reply(new_parser(form), text) == read_reply(new_parser(form), [text])


def test_a_name_has_at_most_256_characters(new_parser: New, read_reply: Read) -> None:
    replies = [f"[TOOL_CALLS]{'x' * length}[ARGS]{{}}" for length in (256, 257)]
    assert [len(read_reply(new_parser("mistral"), [reply]).calls) for reply in replies] == [1, 0]


HARMONY_CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"


def test_text_behind_the_arguments_of_a_harmony_call_makes_it_malformed(
    new_parser: New, read_reply: Read
) -> None:
    found = read_reply(new_parser("harmony"), [f"{HARMONY_CALL} and<|call|>"])
    assert (found.text, found.calls) == ("{} and", [])


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("a<|channel|>commentary to=functions.n", "a"),
        (" to=functions.now<|channel|>comm", ""),
        (" to=you, dear", " to=you, dear"),
    ],
)
def test_a_harmony_header_that_is_cut_does_not_come_out(
    reply: str, text: str, new_parser: New, read_reply: Read
) -> None:
    assert read_reply(new_parser("harmony"), [reply]).text == text


def test_without_tools_nothing_in_harmony_is_a_call(read_reply: Read) -> None:
    found = read_reply(by_name("harmony").parser(Tools({})), [f"{HARMONY_CALL}<|call|>"])
    assert (found.text, found.calls) == ("{}", [])


def test_a_long_reply_in_one_piece_takes_time_in_proportion_to_its_length(new_parser: New) -> None:
    # Some 400,000 characters of small members: copying the rest at each of them would take minutes.
    arguments = json.dumps({f"k{i}": [i, {"a": None}] for i in range(16_000)})
    events = new_parser("hermes").feed(f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>')
    assert isinstance(events[-1], CallEnd)
