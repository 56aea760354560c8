"""The grammars of gpt-oss's replies, whose reasoning, text and calls are messages in channels."""

from __future__ import annotations

import pytest
from agentserve.engine.protocol import Constraint
from call_rig import CONTROLS, REPLIES, STRICT, Desk, grammar_for, may_end, written

HARMONY = CONTROLS["harmony"]
THOUGHT = "<|channel|>analysis<|message|>A note, then.<|end|><|start|>assistant"


def test_harmony_may_think_once_before_the_call_it_has_to_make() -> None:
    for text, fits in (
        (THOUGHT, True),
        (THOUGHT * 2, False),
        (THOUGHT.replace("analysis", "commentary"), False),
        (THOUGHT.replace("<|end|>", ""), False),
    ):
        assert Desk("harmony", ("note",)).accepts(text + REPLIES["harmony"]) == fits
    thinking = Desk("harmony", ("note",))
    assert not thinking.accepts(THOUGHT)


def test_harmony_has_one_call_where_its_marker_ends_the_turn_and_several_elsewhere() -> None:
    call = REPLIES["harmony"]
    desk = Desk("harmony", ("note",))
    assert desk.accepts(call)
    assert desk.grammar.is_complete
    two = f"{call}<|call|><|start|>assistant{call}<|call|>"
    spelled = Desk("harmony", ("note",), special=False)
    assert spelled.accepts(two)
    assert len(spelled.calls(two)) == 2
    assert not Desk("harmony", ("note",), special=False, parallel=False).accepts(two)


def test_no_reasoning_of_harmony_spells_a_marker() -> None:
    desk = Desk("harmony", ("note",))
    grammar, vocabulary = desk.grammar, desk.tokenizer
    assert written(grammar, vocabulary, "<|channel|>analysis<|message|>")
    for token in b"<|call|":
        grammar.observe(vocabulary.encode(chr(token))[0])
    assert vocabulary.encode(">")[0] not in desk.allowed()


def test_an_answer_of_harmony_in_a_form_may_be_a_call_where_tools_are_offered() -> None:
    asked = Constraint("json_schema", '{"const": {"sum": 3}}', "response_format")
    answer = '<|channel|>final<|message|>{"sum": 3}'
    for text, fits in (
        (answer, True),
        (THOUGHT + answer, True),
        (THOUGHT + REPLIES["harmony"], True),
        (answer.replace("3", "4"), False),
        (THOUGHT, False),
    ):
        grammar, vocabulary = grammar_for("harmony", HARMONY, constraint=asked)
        assert grammar is not None
        assert (written(grammar, vocabulary, text) and may_end(grammar, vocabulary)) == fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("<|channel|>final<|message|>It rains.", True),
        (THOUGHT + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + REPLIES["harmony"], True),
        (REPLIES["harmony"].replace("note", "nope"), False),
        (REPLIES["harmony"].replace("3", "100"), False),
        (' to=functions.note<|channel|>commentary json<|message|>{"text": 1}', False),
        ("It rains.", False),
    ],
)  # fmt: skip
def test_a_strict_tool_holds_all_messages_of_harmony(text: str, fits: bool) -> None:
    grammar, vocabulary = grammar_for("harmony", HARMONY, tools_json=STRICT)
    assert grammar is not None
    assert (written(grammar, vocabulary, text) and may_end(grammar, vocabulary)) == fits


def test_strict_tools_are_without_effect_for_harmony_spelled_in_letters() -> None:
    assert grammar_for("harmony", [], tools_json=STRICT)[0] is None
