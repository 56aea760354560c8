"""What the grammar of a notation lets through, the notation's parser reads as complete calls of the tools offered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from agentserve.engine.constraints.desk import Constraints
from agentserve.engine.constraints.errors import ConstraintError
from agentserve.engine.constraints.state import Grammar
from agentserve.engine.gguf.metadata import Metadata
from agentserve.engine.gguf.tokenizer import TokenType, byte_alphabet
from agentserve.engine.protocol import Constraint, GenerateRequest, Message
from agentserve.engine.replies.formats import ReplyFormats
from agentserve.engine.text.tokenise import Tokenizer
from agentserve.engine.tool_formats import deepseek
from agentserve.engine.tool_formats.events import CallArguments, CallDropped, CallEnd, CallStart, Text
from agentserve.engine.tool_formats.formats import by_name
from agentserve.engine.tool_formats.tools import read_tools
from jsonschema import Draft202012Validator

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "São <Paulo>", "", "<|im_end|>"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "maxItems": 3},
    },
    "required": ["city"],
    "additionalProperties": False,
}
NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "where": {"$ref": "#/$defs/place"}},
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"line": {"type": "integer", "maximum": 99}}}},
}
TOOLS = [("get_weather", WEATHER), ("no_arguments", {}), ("note", NOTE)]
TOOLS_JSON = json.dumps(
    [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS]
)
DEEPSEEK = [getattr(deepseek, f"CALL{name}") for name in ("S_BEGIN", "S_END", "_BEGIN", "_END")]
CONTROLS = {
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
    "older mistral": ["[TOOL_CALLS]"],
    "deepseek": [*DEEPSEEK, deepseek.SEPARATOR],
    "hermes": ["<tool_call>", "</tool_call>"],
    "glm": ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
}
NOTATIONS = ["hermes", "qwen3_coder", "glm", "llama3", "mistral", "older mistral", "deepseek"]
REPLIES = {
    "hermes": '<tool_call>\n{"name": "note", "arguments": {"text": "a\\n<b>", "where": {"line": 3}}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=note>\n<parameter=text>\na\n<b>\n</parameter>\n"
    '<parameter=where>\n{"line": 3}\n</parameter>\n</function>\n</tool_call>',
    "glm": "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>a\n<b></arg_value>\n"
    '<arg_key>where</arg_key>\n<arg_value>{"line": 3}</arg_value>\n</tool_call>',
    "llama3": '{"name": "note", "parameters": {"text": "a\\n<b>", "where": {"line": 3}}}',
    "mistral": '[TOOL_CALLS]note[ARGS]{"text": "a\\n<b>", "where": {"line": 3}}',
    "older mistral": '[TOOL_CALLS][{"name": "note", "arguments": {"text": "a\\n<b>", "where": {"line": 3}}}]',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>note<｜tool▁sep｜>"
    '{"text": "a\\n<b>", "where": {"line": 3}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}


def tokenizer(controls: list[str]) -> Tokenizer:
    """One token a byte, and control tokens."""
    texts = [*byte_alphabet(), "<|im_end|>", *controls]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * (1 + len(controls))
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": texts,
        "merges": [],
        "token_type": np.array(types, np.int32),
        "eos_token_id": 256,
    }
    return Tokenizer(Metadata({f"tokenizer.ggml.{key}": value for key, value in keys.items()}), len(texts))


class Desk:
    """The grammar of a reply that has to call one of `required`, for a model with the notation's control tokens."""

    def __init__(
        self, notation: str, required: tuple[str, ...], *, parallel: bool = True, special: bool = True
    ) -> None:
        self.form = by_name(notation.removeprefix("older "))
        self.tokenizer = tokenizer(CONTROLS.get(notation, []) if special else [])
        request = GenerateRequest(
            "r",
            (Message("user", "x"),),
            tools_json=TOOLS_JSON,
            required_tools=required,
            parallel_tool_calls=parallel,
        )
        grammar = Constraints(self.tokenizer, ReplyFormats(self.form)).grammar(request, ())
        assert grammar is not None
        self.grammar: Grammar = grammar

    def allowed(self) -> np.ndarray:
        logits = np.zeros(self.tokenizer.vocab_size, np.float32)
        return np.flatnonzero(np.isfinite(self.grammar.masked(logits)))

    def accepts(self, text: str) -> bool:
        """Writes `text`; whether it was let through and may end there."""
        for token in self.tokenizer.encode(text):
            if token not in self.allowed():
                return False
            self.grammar.observe(token)
        return bool(set(self.allowed()) & self.tokenizer.eos_ids)

    def random_reply(self, seed: int, most: int = 3000) -> str:
        """A reply in which every token that may come next is as likely as the others."""
        dice, text = np.random.default_rng(seed), b""
        for _ in range(most):
            token = int(dice.choice(self.allowed()))
            if token in self.tokenizer.eos_ids:
                return text.decode()
            self.grammar.observe(token)
            text += self.tokenizer.spelling(token)
        raise AssertionError("the reply does not end")

    def calls(self, reply: str) -> list[tuple[str, Any]]:
        """What the parser reads; nothing may be left over."""
        parser = self.form.parser(read_tools(TOOLS_JSON))
        events = [*parser.feed(reply), *parser.finish()]
        assert not [event for event in events if isinstance(event, Text | CallDropped)]
        starts = [event for event in events if isinstance(event, CallStart)]
        assert len(starts) == len([event for event in events if isinstance(event, CallEnd)])
        return [(start.name, json.loads(arguments(events, start.index))) for start in starts]


def arguments(events: list[Any], index: int) -> str:
    return "".join(e.fragment for e in events if isinstance(e, CallArguments) and e.index == index)


@pytest.mark.parametrize("special", [True, False], ids=["control tokens", "spelled in letters"])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_whatever_the_grammar_lets_through_is_calls_that_keep_to_their_schemas(
    notation: str, special: bool
) -> None:
    for seed in range(8):
        desk = Desk(notation, ("get_weather", "note") if seed % 2 else ("get_weather",), special=special)
        if seed % 2 and notation in ("qwen3_coder", "glm"):
            continue  # a bare string of random bytes never comes to its end
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


@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_reply_may_have_one_call_or_several(notation: str) -> None:
    between = {"llama3": "; ", "mistral": "", "older mistral": ", ", "deepseek": ""}.get(notation, "\n")
    reply = REPLIES[notation]
    if notation == "older mistral":
        call = reply.removeprefix("[TOOL_CALLS][").removesuffix("]")
        two = f"[TOOL_CALLS][{call}{between}{call}]"
    elif notation == "deepseek":
        call = reply.removeprefix(deepseek.CALLS_BEGIN).removesuffix(deepseek.CALLS_END)
        two = f"{deepseek.CALLS_BEGIN}{call}{between}{call}{deepseek.CALLS_END}"
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


def test_control_tokens_are_written_as_tokens() -> None:
    desk = Desk("hermes", ("note",))
    assert desk.grammar.forced(1) == (desk.tokenizer.id_of("<tool_call>"),)
    spelled = Desk("hermes", ("note",), special=False)
    assert spelled.tokenizer.decode(spelled.grammar.forced(11)) == "<tool_call>"


@pytest.mark.parametrize("notation", ["gemma4", "function_gemma", "tool_code", "harmony"])
def test_a_notation_without_a_grammar_is_refused_by_name(notation: str) -> None:
    with pytest.raises(ConstraintError, match=f"which writes them as {notation}") as error:
        Desk(notation, ("note",))
    assert error.value.param == "tool_choice"


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


def grammar_for(notation: str, controls: list[str], **fields: Any) -> tuple[Grammar | None, Tokenizer]:
    vocabulary = tokenizer(controls)
    request = GenerateRequest("r", (Message("user", "x"),), **{"tools_json": TOOLS_JSON, **fields})
    return Constraints(vocabulary, ReplyFormats(by_name(notation))).grammar(request, ()), vocabulary


def written(grammar: Grammar, vocabulary: Tokenizer, text: str) -> bool:
    """Whether all of a text was let through."""
    for token in vocabulary.encode(text):
        if not np.isfinite(grammar.masked(np.zeros(vocabulary.vocab_size, np.float32))[token]):
            return False
        grammar.observe(token)
    return True


def may_end(grammar: Grammar, vocabulary: Tokenizer) -> bool:
    masked = grammar.masked(np.zeros(vocabulary.vocab_size, np.float32))
    return bool(np.isfinite(masked[list(vocabulary.eos_ids)]).any())


@pytest.mark.parametrize("notation", ["hermes", "llama3", "qwen3_coder"])
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


STRICT = json.dumps(
    [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in TOOLS
    ]
)


@pytest.mark.parametrize("notation", ["hermes", "mistral", "older mistral", "deepseek"])
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
