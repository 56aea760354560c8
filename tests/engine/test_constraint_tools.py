"""What the grammar of a notation lets through, the notation's parser reads as complete calls of the tools offered."""

from __future__ import annotations

import json

import pytest
from agentserve.engine.constraints.desk import Constraints
from agentserve.engine.constraints.errors import ConstraintError
from agentserve.engine.protocol import Constraint, GenerateRequest, Message
from agentserve.engine.replies.formats import ReplyFormats
from agentserve.engine.replies.reasoning import REASONING_FORMATS
from agentserve.engine.tool_formats import deepseek
from agentserve.engine.tool_formats.formats import by_name
from call_rig import (
    CONTROLS,
    NOTATIONS,
    REPLIES,
    STRICT,
    TOOLS,
    TOOLS_JSON,
    Desk,
    grammar_for,
    may_end,
    tokenizer,
    written,
)
from jsonschema import Draft202012Validator


@pytest.mark.parametrize("special", [True, False], ids=["control tokens", "spelled in letters"])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_whatever_the_grammar_lets_through_is_calls_that_keep_to_their_schemas(
    notation: str, special: bool
) -> None:
    for seed in range(8):
        desk = Desk(notation, ("get_weather", "note") if seed % 2 else ("get_weather",), special=special)
        found = desk.calls(desk.random_reply(seed))
        assert found
        for name, given in found:
            Draft202012Validator(dict(TOOLS)[name]).validate(given)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_the_calls_of_a_notation_are_let_through(notation: str) -> None:
    desk = Desk(notation, ("get_weather", "note"))
    assert desk.accepts(REPLIES[notation])
    assert desk.calls(REPLIES[notation]) == [("note", {"text": "a\n<b>", "where": {"line": 3}})]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_nothing_else_is(notation: str) -> None:
    reply = REPLIES[notation]
    assert not Desk(notation, ("get_weather",)).accepts(reply)
    assert not Desk(notation, ("note",)).accepts("It rains. " + reply)
    assert not Desk(notation, ("note",)).accepts(reply[:-1])
    assert not Desk(notation, ("note",)).accepts(reply.replace("3", "100"))
    assert not Desk(notation, ("note",)).accepts(reply.replace("text", "txet"))


@pytest.mark.parametrize("notation", [name for name in NOTATIONS if name != "harmony"])
def test_a_reply_may_have_one_call_or_several(notation: str) -> None:
    other = {
        "llama3": "; ",
        "mistral": "",
        "older mistral": ", ",
        "deepseek": "",
        "gemma4": "",
        "function_gemma": "",
    }
    between = other.get(notation, "\n")
    reply = REPLIES[notation]
    if notation == "older mistral":
        call = reply.removeprefix("[TOOL_CALLS][").removesuffix("]")
        two = f"[TOOL_CALLS][{call}{between}{call}]"
    elif notation == "deepseek":
        call = reply.removeprefix(deepseek.CALLS_BEGIN).removesuffix(deepseek.CALLS_END)
        two = f"{deepseek.CALLS_BEGIN}{call}{between}{call}{deepseek.CALLS_END}"
    elif notation == "tool_code":
        two = reply.removesuffix("\n```") + reply.removeprefix("```tool_code")
    else:
        two = reply + between + reply
    assert len(Desk(notation, ("note",)).calls(two)) == 2
    assert Desk(notation, ("note",)).accepts(two)
    single = Desk(notation, ("note",), parallel=False)
    assert not single.accepts(two)
    single = Desk(notation, ("note",), parallel=False)
    assert single.accepts(reply)
    assert single.grammar.is_complete


def test_the_older_deepseek_notation_is_let_through() -> None:
    begin, end = deepseek.CALL_BEGIN, deepseek.CALL_END
    call = f'{begin}function{deepseek.SEPARATOR}note\n```json\n{{"text": "a"}}\n```{end}'
    reply = f"{deepseek.CALLS_BEGIN}{call}{deepseek.CALLS_END}"
    desk = Desk("deepseek", ("note",))
    assert desk.accepts(reply)
    assert desk.calls(reply) == [("note", {"text": "a"})]


@pytest.mark.parametrize(
    ("notation", "head", "tag"),
    [
        ("qwen3_coder", "<tool_call>\n<function=note>\n<parameter=text>\n", "</parameter>"),
        ("glm", "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>", "</arg_value>"),
        ("gemma4", '<|tool_call>call:note{text:<|"|>', '<|"|>'),
        ("function_gemma", "<start_function_call>call:note{text:<escape>", "<escape>"),
    ],
)
def test_no_text_spells_the_tag_that_would_end_it(notation: str, head: str, tag: str) -> None:
    desk = Desk(notation, ("note",))
    letters = [desk.tokenizer.encode(letter)[0] for letter in f"a{tag}"]
    for token in [*desk.tokenizer.encode(head), *letters[:-1]]:
        assert token in desk.allowed()
        desk.grammar.observe(token)
    assert letters[-1] not in desk.allowed()


def test_control_tokens_are_written_as_tokens() -> None:
    desk = Desk("hermes", ("note",))
    assert desk.grammar.forced(1) == (desk.tokenizer.id_of("<tool_call>"),)
    spelled = Desk("hermes", ("note",), special=False)
    assert spelled.tokenizer.decode(spelled.grammar.forced(11)) == "<tool_call>"


def test_a_model_that_was_taught_no_calls_can_not_be_made_to_write_them() -> None:
    request = GenerateRequest("r", (Message("user", "x"),), tools_json=TOOLS_JSON, required_tools=("note",))
    with pytest.raises(ConstraintError, match="was taught none"):
        Constraints(tokenizer([]), ReplyFormats()).grammar(request, ())


def test_a_schema_of_a_tool_that_is_not_supported_is_named() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}
    ]
    request = GenerateRequest(
        "r", (Message("user", "x"),), tools_json=json.dumps(tools), required_tools=("f",)
    )
    with pytest.raises(ConstraintError, match="not supported: not") as error:
        Constraints(tokenizer([]), ReplyFormats(by_name("hermes"))).grammar(request, ())
    assert error.value.param == "tools"


@pytest.mark.parametrize("notation", ["hermes", "llama3", "qwen3_coder", "gemma4", "tool_code"])
@pytest.mark.parametrize(
    ("constraint", "answer"),
    [
        (Constraint("json_schema", '{"const": {"sum": 3}}', "response_format"), '{"sum": 3}'),
        (Constraint("regex", r"a/b\/[0-9]\\", "guided_regex"), "a/b/7\\"),
    ],
)
def test_an_answer_in_a_form_may_be_a_call_where_tools_are_offered(
    notation: str, constraint: Constraint, answer: str
) -> None:
    for text, fits in ((answer, True), (REPLIES[notation], True), ("It rains.", False)):
        grammar, vocabulary = grammar_for(notation, [], constraint=constraint)
        assert grammar is not None
        assert (written(grammar, vocabulary, text) and may_end(grammar, vocabulary)) == fits
    alone, vocabulary = grammar_for(notation, [], constraint=constraint, tools_json=None)
    assert alone is not None
    assert not written(alone, vocabulary, REPLIES[notation])


@pytest.mark.parametrize(
    "notation", ["hermes", "mistral", "older mistral", "deepseek", "gemma4", "function_gemma"]
)
def test_calls_of_strict_tools_are_held_to_their_schemas_within_free_text(notation: str) -> None:
    name, controls, reply = notation.removeprefix("older "), CONTROLS[notation], REPLIES[notation]
    grammar, vocabulary = grammar_for(name, controls, tools_json=STRICT)
    assert grammar is not None
    assert written(grammar, vocabulary, f"I look.\n{reply}")
    assert may_end(grammar, vocabulary)
    assert written(grammar, vocabulary, f" And again: {reply} So.")
    for wrong in (reply.replace("note", "nope"), reply.replace("3", "100"), reply[: len(reply) // 2]):
        grammar, vocabulary = grammar_for(name, controls, tools_json=STRICT)
        assert grammar is not None
        assert not (written(grammar, vocabulary, wrong) and may_end(grammar, vocabulary))


def test_calls_of_other_tools_and_calls_without_a_token_of_their_own_are_free() -> None:
    assert grammar_for("hermes", CONTROLS["hermes"])[0] is None
    assert grammar_for("hermes", [], tools_json=STRICT)[0] is None
    assert grammar_for("llama3", [], tools_json=STRICT)[0] is None


def test_within_a_call_tokens_are_forced_and_drafts_are_cut_and_outside_neither() -> None:
    grammar, vocabulary = grammar_for("hermes", CONTROLS["hermes"], tools_json=STRICT)
    assert grammar is not None
    assert (grammar.forced(9), grammar.allows(vocabulary.encode("anything"))) == ((), 8)
    written(grammar, vocabulary, "<tool_call>")
    assert vocabulary.decode(grammar.forced(8)) == '\n{"name"'
    assert grammar.allows(vocabulary.encode("\n{anything")) == 2
    assert not grammar.is_complete


def test_gemma_4_may_think_before_the_call_it_has_to_make() -> None:
    controls = [*CONTROLS["gemma4"], "<|channel>", "<channel|>"]
    request = GenerateRequest("r", (Message("user", "x"),), tools_json=TOOLS_JSON, required_tools=("note",))
    thinks = next(form for form in REASONING_FORMATS if form.name == "gemma4")
    for text in (REPLIES["gemma4"], f"<|channel>thought\nA note.<channel|>{REPLIES['gemma4']}"):
        vocabulary = tokenizer(controls)
        grammar = Constraints(vocabulary, ReplyFormats(by_name("gemma4"), thinks)).grammar(request, ())
        assert grammar is not None
        assert written(grammar, vocabulary, text)
        assert may_end(grammar, vocabulary)


@pytest.mark.parametrize(
    ("notation", "name"),
    [
        ("gemma4", "a{b"),
        ("function_gemma", "a b"),
        ("tool_code", "get-weather"),
        ("tool_code", "class"),
        ("tool_code", "f(a=1)\ng"),
        ("harmony", "a<b"),
    ],
)
def test_a_tool_whose_name_can_not_be_written_is_refused_by_name(notation: str, name: str) -> None:
    tools = json.dumps([{"type": "function", "function": {"name": name}}])
    with pytest.raises(ConstraintError, match=f"is a name that {notation} calls can't have") as error:
        grammar_for(notation, CONTROLS.get(notation, []), tools_json=tools, required_tools=(name,))
    assert (error.value.code, error.value.param) == ("unsupported_parameter", "tools")
    assert repr(name) in error.value.message
