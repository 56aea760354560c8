"""What a constraint may be: whatever can't be honoured is refused by name, before any work."""

from __future__ import annotations

import json
from random import Random

import pytest
from agentserve.engine.constraints.errors import MOST_BYTES, MOST_LEVELS, ConstraintError
from agentserve.engine.constraints.state import BrokenConstraint
from agentserve.engine.protocol import Constraint
from call_rig import Desk
from grammar_rig import TOKENIZER, allowed, grammar_of, schema, write
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_schemas import random_schema

ERRORS: list[tuple[Constraint, str, str]] = [
    (schema({"not": {}}), "unsupported_schema_keyword", "not supported: not"),
    (schema({"properties": {"a": {"if": {}, "then": {}}}}), "unsupported_schema_keyword", "if, then"),
    (schema({"type": "array", "uniqueItems": True}), "unsupported_schema_keyword", "uniqueItems"),
    (schema({"oneOf": [{"type": "string"}] * 2}), "unsupported_schema_keyword", "oneOf .*use anyOf"),
    (schema({"x-guidance": {"lenient": True}, "not": {}}), "unsupported_schema_keyword", "not supported: not"),
    (
        schema({"type": "object", "properties": {"a": {}}, "maxProperties": 1}),
        "unsupported_schema_keyword",
        "min/maxProperties unless all keys",
    ),
    (schema({"type": "strng"}), "invalid_json_schema", "Invalid type: strng"),
    (schema({"$ref": "#/nowhere"}), "invalid_json_schema", "Pointer '/nowhere' does not exist"),
    (schema({"type": "string", "format": 5}), "invalid_json_schema", "Expected string for 'format'"),
    (schema({"type": "string", "pattern": "(?=x)"}), "invalid_json_schema", "look-around"),
    (schema({"enum": []}), "invalid_json_schema", "Unsatisfiable"),
    (Constraint("json_schema", "{", "p"), "invalid_json_schema", "Expecting property name"),
    (Constraint("json_schema", "[" * 101 + "]" * 101, "p"), "invalid_json_schema", "101 deep, the limit is 100"),
    (Constraint("regex", "(", "p"), "invalid_regular_expression", "unclosed group"),
    (Constraint("regex", "a" * 20_000, "p"), "invalid_regular_expression", "20,000 bytes, the limit is 16,384"),
    (Constraint("lark", 'foo: "x"', "p"), "invalid_grammar", "no start rule"),
    (Constraint("lark", "start: x", "p"), "invalid_grammar", 'unknown name: "x"'),
    (Constraint("lark", 'start: "x" start', "p"), "invalid_grammar", "Too many items"),
    (Constraint("lark", "start: a\na: b\nb: a", "p"), "invalid_grammar", "no text fits it but the empty one"),
    (
        schema({"anyOf": [{"properties": {f"p{i}": {}, **{f"q{j}": {} for j in range(95)}}} for i in range(100)]}),
        "invalid_json_schema",
        "more than 50,000 symbols",
    ),
    (Constraint("regex", "(a{1000}){1000}", "p"), "invalid_regular_expression", "repetitions written out"),
]  # fmt: skip


@pytest.mark.parametrize(("constraint", "code", "message"), ERRORS)
def test_what_can_not_be_honoured_is_refused_by_name(constraint: Constraint, code: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as error:
        grammar_of(constraint)
    assert error.value.code == code
    assert error.value.message.startswith(f"{constraint.param}: ")
    assert "\n" not in error.value.message


KEYWORDS = [
    "type",
    "properties",
    "required",
    "items",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "minLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "multipleOf",
    "minItems",
    "prefixItems",
    "additionalProperties",
    "patternProperties",
    "not",
    "x-guidance",
    "maxProperties",
    "a",
]
atoms = st.none() | st.booleans() | st.integers(-5, 50) | st.floats(allow_nan=False, allow_infinity=False)
words = st.sampled_from(["string", "object", "array", "number", "#/$defs/a", "#", "date", "^a+$", "(", "x"])
values = st.recursive(
    atoms | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5),
    max_leaves=25,
)
schemas = st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=6).map(schema)
expressions = st.text("ab()[]{}|*+?.^$\\d-,019\n/é", max_size=25).map(
    lambda text: Constraint("regex", text, "p")
)
SYMBOLS = [
    "start",
    "a",
    ":",
    "|",
    "\n",
    '"x"',
    "/[a-z]+/",
    "(",
    ")",
    "*",
    "?",
    "~",
    "1..3",
    "%json",
    "{}",
    "<[3]>",
    "@x",
]
grammars = st.lists(st.sampled_from(SYMBOLS), max_size=18).map(
    lambda parts: Constraint("lark", f"start: {' '.join(parts)}", "p")
)


@settings(max_examples=400, deadline=None)
@example(Constraint("lark", "start: <[3]> start", "p"))
@given(schemas | expressions | grammars)
def test_anything_else_is_a_grammar_or_an_error_that_says_why(constraint: Constraint) -> None:
    try:
        grammar = grammar_of(constraint)
    except ConstraintError:
        return
    for _ in range(20):
        choices = sorted(allowed(grammar))
        token = choices[len(choices) // 2]
        if token in TOKENIZER.eos_ids:
            break
        try:
            grammar.observe(token)
        except BrokenConstraint:
            return  # Some grammars are found to be too much only when text comes; that is an answer, too.


def test_the_largest_sources_are_taken() -> None:
    deep: object = {"type": "string"}
    for _ in range(MOST_LEVELS // 2 - 1):
        deep = {"type": "array", "items": deep}
    grammar_of(schema(deep))
    grammar_of(Constraint("regex", "a" * MOST_BYTES["regex"], "p"))
    write(grammar_of(schema({"const": "x" * (MOST_BYTES["json_schema"] - 20)})), '"x')


@pytest.mark.parametrize("count", [520, 4000])
def test_an_object_may_have_thousands_of_fields_that_may_be_left_out(count: int) -> None:
    """As many as fit the limits on the schema and on the symbols of its grammar."""
    properties = {f"p{i}": {"type": "integer"} for i in range(count)}
    grammar = grammar_of(schema({"type": "object", "properties": properties, "additionalProperties": False}))
    write(grammar, '{"p3": 1}')
    assert grammar.is_complete


def test_tools_of_every_day_many_times_over_are_taken() -> None:
    """As large as a grammar may be in bytes, they are far from the other limits."""
    dice = Random(7)
    fields = ({f"x{n}": random_schema(dice, depth=2) for n in range(6)} for _ in range(60))
    tools = [(f"tool_{at}", {"type": "object", "properties": each}) for at, each in enumerate(fields)]
    assert 100_000 < len(json.dumps(tools)) < MOST_BYTES["lark"]
    for notation in ("hermes", "qwen3_coder", "gemma4"):
        desk = Desk(notation, tuple(name for name, _ in tools), tools=tools)
        assert allowed(desk.grammar, desk.tokenizer.vocab_size)
