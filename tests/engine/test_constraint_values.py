"""Calls in notations that are not JSON: whatever their grammars let through is one call that the schema allows."""

from __future__ import annotations

import re
from itertools import product
from random import Random
from typing import Any

import pytest
from agentserve.engine.constraints.errors import ConstraintError
from agentserve.engine.constraints.strings import anything_but
from call_rig import Desk
from jsonschema import Draft202012Validator
from random_schemas import random_schema

NOTATIONS = ["gemma4", "function_gemma", "tool_code", "harmony"]
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["v"],
}
TAGGED = [
    {
        "type": "object",
        "properties": {"kind": {"const": kind}, "n": {"type": "integer"}},
        "required": ["kind"],
    }
    for kind in ("a", "b")
]


def argument(schema: Any, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **root}


SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing is said": {},
    "an object that may be anything": argument({"type": "object"}),
    "a value that may be anything": argument(True),
    "a map": argument({"type": "object", "additionalProperties": {"type": "string"}}),
    "a map beside properties": argument(
        {
            "properties": {"a b": {"type": "integer"}, "": {"type": "null"}, "kind": {"const": 1}},
            "required": ["kind", "more"],
            "additionalProperties": {"type": "boolean"},
        }
    ),
    "properties by a pattern": argument(
        {"properties": {"a": {"type": "null"}}, "patternProperties": {"^x": {"type": "boolean"}}}
    ),
    "a tree": argument({"$ref": "#/$defs/tree"}, **{"$defs": {"tree": TREE}}),
    "types": argument({"type": ["number", "boolean", "null", "string"]}),
    "a union": argument(
        {"anyOf": [{"type": "integer", "minimum": 7}, {"enum": ["red", "green"]}, {"type": "array"}]}
    ),
    "one of two by its tag": argument({"oneOf": TAGGED}),
    "a tuple": argument(
        {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 1}
    ),
    "a tuple and more": argument(
        {"prefixItems": [{"type": "boolean"}], "items": {"type": "null"}, "minItems": 2, "maxItems": 4}
    ),
    "lists of some length": argument({"items": {"items": {"type": "boolean"}, "maxItems": 2}, "minItems": 2}),
    "lists that stay empty": argument({"items": False}),
    "names that are no words": {
        "properties": {"a b": {"type": "integer"}, "c:d": {"type": "integer"}, "ü}": {"type": "string"}}
    },
    "some arguments or others": {
        "properties": {"a": {"type": "boolean"}, "b": {"type": "string"}, "c": {"type": "null"}},
        "additionalProperties": False,
        "anyOf": [{"required": ["b"]}, {"required": ["c"]}],
    },
    "patterns": {
        "properties": {
            "a": {"type": "string", "pattern": "a|^b|c$"},
            "b": {"type": "string", "pattern": r"[/|]x\/[^\] ]", "minLength": 4, "maxLength": 9},
        },
        "required": ["a", "b"],
    },
    "formats": {
        "properties": {
            name: {"type": "string", "format": name}
            for name in (
                "date",
                "time",
                "date-time",
                "duration",
                "uuid",
                "ipv4",
                "ipv6",
                "hostname",
                "email",
                "uri",
            )
        },
        "minProperties": 0,
    },
    "all of several": argument(
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}, {"minLength": 3}], "title": "x"}
    ),
    "numbers": {
        "properties": {
            "a": {"type": "number"},
            "b": {"type": "integer", "minimum": 0},
            "c": {"type": "number", "exclusiveMaximum": 0.5},
            "d": {"type": "integer", "multipleOf": 7},
            "e": {"minimum": 3, "maximum": 3},
        },
        "required": ["a", "b", "c", "d", "e"],
    },
    "values": argument(
        {
            "enum": [
                "red",
                'say "hi"',
                "a\\b\n",
                None,
                1,
                2.5,
                True,
                [1, [2]],
                {"a": {"b c": "x"}},
                "\n```",
                "\x7f",
            ]
        }
    ),
    "markers among values": argument(
        {"enum": ["<escape>", '<|"|>', "```", "<end_function_call>", "<|call|>"]}
    ),
    "a constant": argument({"const": {"a": [1, 2], "": None}}),
    "a name that Python keeps to itself": {
        "properties": {"from": {"type": "string"}, "ok": {"type": "boolean"}},
        "additionalProperties": False,
    },
}


def check(notation: str, schema: dict[str, Any], seed: int, *, special: bool) -> None:
    """A random reply is one call that the schema allows, wherever it is split."""
    desk = Desk(notation, ("f",), parallel=False, special=special, tools=[("f", schema)])
    reply = desk.random_reply(seed)
    ((_, given),) = desk.calls(reply)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(given)
    assert desk.calls(*reply) == [("f", given)]
    for at in range(1, len(reply), 1 + len(reply) // 100):
        assert desk.calls(reply[:at], reply[at:]) == [("f", given)]


@pytest.mark.parametrize("special", [True, False], ids=["control tokens", "spelled in letters"])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_random_schemas_are_kept(notation: str, special: bool) -> None:
    for seed in range(6):
        check(notation, random_schema(Random(seed), depth=3), seed, special=special)


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_every_part_of_a_schema_is_kept(notation: str, schema: dict[str, Any]) -> None:
    for seed in range(2):
        check(notation, schema, seed, special=seed == 0)


REFUSED: list[tuple[Any, str]] = [
    ({"not": {"type": "string"}}, "not supported: not$"),
    ({"if": {}, "then": {}}, "if, then"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"propertyNames": {"pattern": "a"}}, "propertyNames"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf .*use anyOf"),
    ({"oneOf": [{"type": "object"}, TAGGED[0]]}, "oneOf .*use anyOf"),
    ({"type": "object", "minProperties": 1}, "minProperties unless"),
    ({"type": "object", "maxProperties": 1}, "maxProperties unless"),
    (
        {"properties": {"a": {}}, "additionalProperties": False, "anyOf": [{"required": ["b"]}]},
        "additionalProp",
    ),
    ({"required": ["a"], "patternProperties": {"a": {}}}, "patternProperties 'a' for a property"),
    ({"properties": {"ab": {}}, "patternProperties": {"b$": {}}}, r"patternProperties 'b\$' for a property"),
    ({"properties": {"ab": {}}, "patternProperties": {"(": {}}}, r"patternProperties '\(' for a property"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern that two parts of allOf differ in"),
    ({"enum": ["a"], "minLength": 3}, "enum beside minLength"),
    ({"minLength": 1, "minItems": 1}, "keywords for array and string without a type"),
    ({"$ref": "#/$defs/none"}, r"\$ref '#/\$defs/none', which leads nowhere"),
    ({"allOf": [{"$ref": "#/properties/x"}]}, "anyOf more than 16 deep"),
    ({"allOf": [{"anyOf": [{"minimum": n} for n in range(15)]}] * 2}, "more than 200 combinations"),
]


@pytest.mark.parametrize("notation", ["gemma4", "function_gemma", "tool_code"])
@pytest.mark.parametrize(("schema", "message"), REFUSED)
def test_what_can_not_be_promised_is_refused_by_name(notation: str, schema: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as error:
        Desk(notation, ("f",), tools=[("f", argument(schema))])
    assert (error.value.code, error.value.param) == ("unsupported_schema_keyword", "tools")
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strng"}, "type has a value of the wrong kind"),
        ({"properties": ["a"]}, "properties has"),
        ({"required": "a"}, "required has"),
        ({"anyOf": [3]}, "anyOf has"),
        ({"minLength": -1}, "minLength has"),
        ({"maximum": True}, "maximum has"),
        ({"enum": []}, "no arguments of 'f' fit it"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no arguments of 'f' fit it"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "no arguments of 'f' fit it"),
        ({"type": "string", "pattern": "(?=x)"}, "look-?around"),
    ],
)
def test_a_schema_that_is_wrong_in_itself_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as error:
        Desk("gemma4", ("f",), tools=[("f", argument(schema))])
    assert error.value.param == "tools"


@pytest.mark.parametrize(
    ("notation", "name"), [("tool_code", "from"), ("gemma4", " a"), ("function_gemma", "<escape>")]
)
def test_a_required_argument_whose_name_can_not_be_written_is_refused_and_another_left_out(
    notation: str, name: str
) -> None:
    schema = {"properties": {name: {"type": "null"}, "ok": {"const": 1}}}
    with pytest.raises(ConstraintError, match=f"the required property '{name}', whose name"):
        Desk(notation, ("f",), tools=[("f", {**schema, "required": [name]})])
    desk = Desk(notation, ("f",), tools=[("f", {**schema, "required": ["ok"]})])
    assert desk.calls(desk.random_reply(0)) == [("f", {"ok": 1})]


@pytest.mark.parametrize(
    ("part", "letters"), [("x", "xy"), ("<|", "<|a"), ("<ab>", "<ab>c"), ('<|"|>', '<|">')]
)
def test_a_text_without_a_part_is_any_text_that_has_it_nowhere(part: str, letters: str) -> None:
    source = re.compile(anything_but(part).removeprefix("/").removesuffix("/"))
    for length in range(7):
        for text in map("".join, product(letters, repeat=length)):
            assert bool(source.fullmatch(text)) == (part not in text)
