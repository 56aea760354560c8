"""Reasoning apart from the answer, alone and before tool calls, wherever the text is split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from agentserve.engine.replies.reasoning import REASONING_FORMATS, reply_parser
from agentserve.engine.tool_formats.events import Reasoning, Text
from agentserve.engine.tool_formats.formats import by_name
from agentserve.engine.tool_formats.tools import read_tools
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = read_tools('[{"type": "function", "function": {"name": "now"}}]')
FORMS = {form.name: form for form in REASONING_FORMATS}
THINK = FORMS["think"]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
Read = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    name: str
    reply: str
    reasoning: str = ""
    text: str = ""
    calls: int = 0
    opened: bool = False
    form: str = "think"


CASES = [
    Case("both", "<think>\nHe asks.\n\nSo.\n</think>\n\nIt rains.\n", "He asks.\n\nSo.", "It rains.\n"),
    Case("in one line", "<think>He asks.</think>It rains.", "He asks.", "It rains."),
    Case("opened in the prompt", "He asks.\n</think>\n\nIt rains.", "He asks.", "It rains.", opened=True),
    Case(
        "opened in the prompt and by the model",
        "<think>\nHe asks.\n</think>\nIt rains.",
        "He asks.",
        "It rains.",
        opened=True,
    ),
    Case("indented", "  He asks.\n</think>It rains.", "  He asks.", "It rains.", opened=True),
    Case("none", "It rains.", text="It rains."),
    Case("empty", "<think>\n\n</think>\n\nIt rains.", text="It rains."),
    Case("never closed", "<think>\nHe asks. </thin\n\n", "He asks. </thin"),
    Case("opened in the prompt, never closed", "He asks.\n", "He asks.", opened=True),
    Case("nothing at all", ""),
    Case("blank", " \n ", text=" \n "),
    Case("blank before it", "\n <think>He asks.</think>It rains.", "He asks.", "It rains."),
    Case("a marker in the answer", "Write <think>x</think>.", text="Write <think>x</think>."),
    Case("a second block", "<think>a</think><think>c</think>d", "a\nc", "d"),
    Case("three blocks", "<think>\na\n</think>\n\n<think>\n</think> \n<think>b</think>", "a\nb"),
    Case("a second block behind an opened one", "a</think>\n<think>c</think>\nd", "a\nc", "d", opened=True),
    Case("a second block in the answer", "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
    Case("a block between calls", f"<think>a</think>{CALL}<think>c</think>{CALL}", "a\nc", calls=2),
    Case("blocks between calls", f"{CALL}\n<think>a</think>\n<think>b</think>{CALL}\n", "a\nb", calls=2),
    Case("a block and the answer behind a call", f"{CALL}\n<think>a</think>\n\nb", "a", "\nb", calls=1),
    Case("a block that a call breaks off for", f"{CALL}<think>a{CALL}", f"a{CALL}", calls=1),
    Case("a block behind text and a call", f"So:\n{CALL}<think>a</think>", text="So:<think>a</think>", calls=1),
    Case("a block behind a broken call", "<tool_call>x</tool_call><think>a", text="<tool_call>x</tool_call><think>a"),
    Case("a block behind half a marker", "<tool_c<think>a", text="<tool_c<think>a"),
    Case(
        "a marker in a call",
        CALL.replace("{}", '{"a": "<think>b</think>"}') + "<think>c</think>",
        "c",
        calls=1,
    ),
    Case("nothing but it", "<think>\nHe asks.\n</think>\n", "He asks."),
    Case("and a call", f"<think>\nHe asks.\n</think>\n\n{CALL}", "He asks.", calls=1),
    Case("text and two calls", f"<think>a</think>\n\nSo:\n{CALL}\n{CALL}", "a", "So:", calls=2),
    Case("a call in the reasoning is none", f"<think>Maybe\n{CALL}\n</think>No.", f"Maybe\n{CALL}", "No."),
    Case("a call and no reasoning", CALL, calls=1),
    Case("Mistral", "[THINK]He asks.[/THINK]It rains.", "He asks.", "It rains.", form="mistral"),
    Case(
        "Gemma 4", "<|channel>thought\nHe asks.\n<channel|>It rains.", "He asks.", "It rains.", form="gemma4"
    ),
    Case("Seed", "<seed:think>He asks.</seed:think>It rains.", "He asks.", "It rains.", form="seed"),
]  # fmt: skip
IDS = [case.name for case in CASES]


def parsed(read_reply: Read, case: Case, pieces: Any) -> Any:
    parser = reply_parser(by_name("hermes"), FORMS[case.form], TOOLS, case.opened, lambda: "call_1")
    return read_reply(parser, pieces)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_reply_is_split(case: Case, read_reply: Read) -> None:
    found = parsed(read_reply, case, [case.reply])
    assert (found.reasoning, found.text, len(found.calls)) == (case.reasoning, case.text, case.calls)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_reply_reads_the_same_wherever_it_is_split(case: Case, read_reply: Read) -> None:
    whole = parsed(read_reply, case, [case.reply])
    assert parsed(read_reply, case, case.reply) == whole
    for at in range(1, len(case.reply)):
        assert parsed(read_reply, case, [case.reply[:at], case.reply[at:]]) == whole


def split_as_a_whole(text: str, opened: bool) -> tuple[str, str]:
    """Reasoning and answer, the simple way."""
    blocks: list[str] = []
    while opened or text.lstrip().startswith("<think>"):
        if text.lstrip().startswith("<think>"):
            text = text.lstrip().removeprefix("<think>")
        block, _, text = text.partition("</think>")
        blocks.append(block.strip("\n"))
        text, opened = text.lstrip("\n"), False
    return "\n".join(filter(None, blocks)), text


shards = st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "</"]) | st.text(max_size=3)


@settings(deadline=None)
@given(st.lists(shards, max_size=12), st.booleans())
def test_pieces_are_split_as_the_whole_is(read_reply: Read, pieces: list[str], opened: bool) -> None:
    found = read_reply(reply_parser(None, THINK, None, opened), pieces)
    assert (found.reasoning, found.text) == split_as_a_whole("".join(pieces), opened)


@settings(deadline=None)
@given(st.lists(shards | st.sampled_from([CALL, f"\n{CALL}", "<tool_call>", '{"'])), st.booleans())
def test_with_calls_too_pieces_are_read_as_the_whole_is(
    read_reply: Read, pieces: list[str], opened: bool
) -> None:
    whole = parsed(read_reply, Case("", "", opened=opened), ["".join(pieces)])
    assert parsed(read_reply, Case("", "", opened=opened), pieces) == whole
    assert parsed(read_reply, Case("", "", opened=opened), "".join(pieces)) == whole


parts = st.sampled_from(["<think>a</think>", "<think>\n\n</think>\n\n", CALL, "\n", " "])


@settings(deadline=None)
@given(st.lists(parts), st.booleans())
def test_no_marker_is_left_where_no_answer_has_begun(read_reply: Read, before: list[str], ends: bool) -> None:
    found = parsed(read_reply, Case("", ""), ["".join(before) + "It rains." * ends])
    assert found.text.strip() == "It rains." * ends
    assert found.reasoning.replace("\n", "") == "a" * before.count("<think>a</think>")
    assert len(found.calls) == before.count(CALL)


def test_reasoning_streams_at_once() -> None:
    parser = reply_parser(None, THINK, None, opened=True)
    assert parser.feed("He ") == [Reasoning("He ")]
    assert parser.feed("asks.\n") == [Reasoning("asks.")]
    assert parser.feed("\nSo") == [Reasoning("\n\nSo")]
    assert parser.feed("</thi") == []
    assert parser.feed("nk>\n\nIt") == [Text("It")]
    assert parser.feed(" <") == [Text(" <")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<｜Assistant｜><think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_a_prompt_that_ends_in_the_opening_marker_has_opened_reasoning(prompt: str, opened: bool) -> None:
    assert THINK.is_opened_by(prompt) is opened


def test_without_tools_calls_are_text_and_reasoning_is_still_split(read_reply: Read) -> None:
    found = read_reply(reply_parser(by_name("hermes"), THINK, None), [f"<think>a</think>{CALL}"])
    assert (found.reasoning, found.text, found.calls) == ("a", CALL, [])


def test_a_model_without_formats_gives_its_text(read_reply: Read) -> None:
    found = read_reply(reply_parser(None, None, TOOLS), ["<think>", "a</think>", CALL])
    assert (found.reasoning, found.text) == ("", f"<think>a</think>{CALL}")


def test_harmony_splits_its_own_reasoning(read_reply: Read) -> None:
    reply = (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|><think>b</think>"
    )
    found = read_reply(reply_parser(by_name("harmony"), THINK, None), [reply])
    assert (found.reasoning, found.text) == ("a", "<think>b</think>")
