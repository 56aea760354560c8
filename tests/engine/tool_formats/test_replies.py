"""Replies in every format, whole, split at every position, letter by letter, and cut at every position.

The replies lie in `replies/*.toml`. A case has a `reply` and what should come of it: `text`, `reasoning`, calls;
`plain` says that all of it is text. Arguments are compared as values.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agentserve.engine.tool_formats.events import CallStart
from agentserve.engine.tool_formats.formats import FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    name: str
    form: str
    reply: str
    text: str
    reasoning: str
    calls: list[tuple[str, Any]]


def case_of(entry: dict[str, Any]) -> Case:
    return Case(
        entry["name"],
        entry["format"],
        entry["reply"],
        entry["reply"] if entry.get("plain") else entry.get("text", ""),
        entry.get("reasoning", ""),
        [(call["name"], json.loads(call["arguments"])) for call in entry.get("call", [])],
    )


FILES = sorted((Path(__file__).parent / "replies").glob("*.toml"))
CASES = [case_of(entry) for file in FILES for entry in tomllib.loads(file.read_text())["case"]]
IDS = [f"{case.form}: {case.name}" for case in CASES]
New = Callable[[str], Any]
Read = Callable[..., Any]


def test_every_format_has_replies() -> None:
    assert {case.form for case in CASES} == {form.name for form in FORMATS}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_reply_is_read(case: Case, new_parser: New, read_reply: Read) -> None:
    found = read_reply(new_parser(case.form), [case.reply])
    assert found.text == case.text
    assert found.reasoning == case.reasoning
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == case.calls
    ids = [event.id for event in found.events if isinstance(event, CallStart)]
    assert ids == [f"call_{number}" for number in range(len(case.calls) + len(found.dropped))]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_reply_reads_the_same_wherever_it_is_split(case: Case, new_parser: New, read_reply: Read) -> None:
    whole = read_reply(new_parser(case.form), [case.reply])
    assert read_reply(new_parser(case.form), case.reply) == whole
    for at in range(1, len(case.reply)):
        assert read_reply(new_parser(case.form), [case.reply[:at], case.reply[at:]]) == whole


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_reply_that_is_cut_has_only_calls_that_were_complete(
    case: Case, new_parser: New, read_reply: Read
) -> None:
    for end in range(len(case.reply)):
        found = read_reply(new_parser(case.form), [case.reply[:end]])
        calls = [(name, json.loads(arguments)) for name, arguments in found.calls]
        assert calls == case.calls[: len(calls)]
        if not calls and case.form != "harmony":
            assert found.text == case.reply[:end]
        for arguments in found.dropped:
            with pytest.raises(json.JSONDecodeError):
                json.loads(arguments)


FORMS = [form.name for form in FORMATS]
# Pieces of all formats, so that random texts get far into the grammars.
SHARDS = [
    *{piece for case in CASES for piece in (case.reply[:7], case.reply[-9:])},
    *(token for form in FORMATS for token in (*sorted(form.tokens), *form.signs)),
    *(
        '{"name": "now"',
        '"arguments": {',
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ":",
        ", ",
        "\n",
        " ",
        "call:now{",
        "1",
        "a",
    ),
    *(
        "get_weather",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "to=functions.now",
        "functions.",
        "\ud800",
    ),
]


@settings(deadline=None)
@given(st.sampled_from(FORMS), st.lists(st.sampled_from(SHARDS) | st.text(max_size=4), max_size=25))
def test_no_text_raises_or_depends_on_how_it_is_split(
    new_parser: New, read_reply: Read, form: str, shards: list[str]
) -> None:
    text = "".join(shards)
    found = read_reply(new_parser(form), shards)
    assert found == read_reply(new_parser(form), text)
    assert found == read_reply(new_parser(form), [text])
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in found.calls)
    if not found.calls and form != "harmony":
        assert found.text == text
