"""Bare text → JSON by the schema of a tool, and what a schema says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from agentserve.engine.tool_formats.tools import TYPES, Tools, read_tools, type_of
from agentserve.engine.tool_formats.typed_values import as_json
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, 5),
        (" -5\n", {"integer"}, -5),
        ("5.0", {"integer"}, 5),
        ("5.5", {"integer"}, "5.5"),
        ("five", {"integer"}, "five"),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("5", {"number"}, 5),
        ("5.50", {"number"}, 5.5),
        ("1e999", {"number"}, "1e999"),
        ("NaN", {"number"}, "NaN"),
        ("true", {"boolean"}, True),
        ("False", {"boolean"}, False),
        ("1", {"boolean"}, "1"),
        ("null", {"null", "string"}, None),
        ("None", {"null", "integer"}, None),
        ("nil", {"null", "string"}, "nil"),
        ("5", {"string"}, "5"),
        ("5", {"string", "integer"}, 5),
        ("five", {"string", "integer"}, "five"),
        ("null", set(), "null"),
        ('[1, "a", null]', {"array"}, [1, "a", None]),
        ("[1, 'a', None, (2,)]", {"array"}, [1, "a", None, [2]]),
        ("[1e999]", {"array"}, "[1e999]"),
        ("[f(1)]", {"array"}, "[f(1)]"),
        (r"['C:\d']", {"array"}, [r"C:\d"]),
        ("[" * 3000, {"array"}, "[" * 3000),
        ("[" * 200 + "]" * 200, {"array"}, "[" * 200 + "]" * 200),
        ('{"a": {"b": 1}}', {"object"}, {"a": {"b": 1}}),
        ("{'a': True}", {"object"}, {"a": True}),
        ("{1, 2}", {"object"}, "{1, 2}"),
        ('{"a": 1}', {"array"}, '{"a": 1}'),
        ('"quoted"', {"integer"}, '"quoted"'),
        ("", {"integer"}, ""),
    ],
)
def test_text_becomes_a_value_of_a_type_that_the_schema_allows(
    text: str, types: set[str], value: Any
) -> None:
    found = json.loads(as_json(text, frozenset(types)))
    assert found == value
    assert type(found) is type(value)


@settings(deadline=None)
@given(st.text(), st.frozensets(st.sampled_from(sorted(TYPES))))
def test_any_text_becomes_valid_json(text: str, types: frozenset[str]) -> None:
    value = json.loads(as_json(text, types).encode())
    kind = type_of(value)
    assert value == text or kind in types or (kind == "integer" and "number" in types)


@settings(deadline=None)
@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none())
def test_a_number_or_word_keeps_its_value(value: Any) -> None:
    found = json.loads(as_json(json.dumps(value), frozenset(TYPES)))
    assert found == value or math.isclose(found, value)


def test_lone_surrogates_stay_escapes() -> None:
    assert as_json('["\\ud800"]', frozenset({"array"})) == '["\\ud800"]'


def types_of(schema: Any, **root: Any) -> frozenset[str]:
    return Tools({"f": {"type": "object", "properties": {"a": schema}, **root}}).types("f", "a")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        (
            {"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}, {"const": True}]}]},
            {"integer", "null", "boolean"},
        ),
        ({"allOf": [{"type": "array"}]}, {"array"}),
        ({"enum": [1, "a", None, 1.5, [], {}]}, {"integer", "string", "null", "number", "array", "object"}),
        ({"description": "free"}, set()),
        ({"type": "date"}, set()),
        ({"type": 3}, set()),
        ({"anyOf": 3, "enum": "ab"}, set()),
        (True, set()),
        ({"$ref": "https://example.org/other"}, set()),
        ({"$ref": "#/$defs/missing"}, set()),
    ],
)
def test_the_types_of_an_argument(schema: Any, types: set[str]) -> None:
    assert types_of(schema) == types


def test_references_within_the_schema_are_followed() -> None:
    definitions = {
        "a/b": {"type": "integer"},
        "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "null"}]},
    }
    assert types_of({"$ref": "#/$defs/a~1b"}, **{"$defs": definitions}) == {"integer"}
    assert types_of({"$ref": "#/$defs/self"}, **{"$defs": definitions}) == {"null"}


def test_tools_are_read_leniently() -> None:
    tools = read_tools(
        json.dumps(
            [
                {
                    "type": "function",
                    "function": {"name": "a", "parameters": {"properties": {"x": {"type": "null"}}}},
                },
                {"name": "b", "parameters": None},
                {"type": "web_search"},
                {"function": {"name": 3}},
                "c",
            ]
        )
    )
    assert ("a" in tools, "b" in tools, "web_search" in tools, len(tools)) == (True, True, False, 2)
    assert tools.types("a", "x") == {"null"}
    assert tools.types("b", "x") == frozenset()
    assert tools.argument_names("a") == ("x",)


@pytest.mark.parametrize("text", ["{}", "nonsense", "3"])
def test_tools_that_are_no_list_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|list"):
        read_tools(text)
