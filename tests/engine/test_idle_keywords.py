"""Keywords that demand nothing are no reason to refuse a schema, and never a part of what is demanded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentserve.engine.constraints.errors import ConstraintError
from call_rig import Desk
from grammar_rig import allowed, grammar_of, schema, write
from pydantic import BaseModel, SecretStr

IDLE: list[dict[str, Any]] = [
    {"uniqueItems": False},
    {"not": False},
    {"unevaluatedProperties": True},
    {"unevaluatedItems": {}},
    {"propertyNames": True},
    {"additionalItems": {}},
    {"dependentRequired": {}},
    {"dependentRequired": {"a": []}},
    {"dependentSchemas": {"a": True}},
    {"dependencies": {"a": [], "b": {}}},
    {"patternProperties": {}},
    {"contains": {"type": "null"}, "minContains": 0},
    {"minContains": 2, "maxContains": 1},
]
DEMANDING: list[dict[str, Any]] = [
    {"uniqueItems": 0},
    {"not": {}},
    {"unevaluatedProperties": False},
    {"dependentRequired": {"a": ["b"]}},
    {"dependencies": 5},
    {"contains": {}, "minContains": 1},
    {"contains": {}, "minContains": False},
    {"contains": {}, "minContains": 0, "maxContains": 1},
]
UNKNOWN_FORMATS = ["path", "password", "binary", "byte", "regex", "iri", "json-pointer", "blub"]
VALUE = {"a": [1, 1], "b": "x"}
NOTATIONS = ["hermes", "qwen3_coder", "gemma4", "tool_code"]


def tool(part: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": part}, "required": ["x"]}


@pytest.mark.parametrize("idle", IDLE, ids=json.dumps)
def test_what_demands_nothing_is_left_out_wherever_it_stands(idle: dict[str, Any]) -> None:
    for wanted in (idle, {"allOf": [idle]}, {"$ref": "#/$defs/a"}):
        whole = {"type": "object", "additionalProperties": wanted, "$defs": {"a": idle}}
        grammar = grammar_of(schema(whole))
        write(grammar, json.dumps({"v": VALUE}))
        assert grammar.is_complete


@pytest.mark.parametrize("demanding", DEMANDING, ids=json.dumps)
def test_what_demands_something_is_refused_as_before(demanding: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match=f"not supported: .*{next(iter(demanding))}"):
        grammar_of(schema({"properties": {"x": demanding}}))
    with pytest.raises(ConstraintError, match=next(iter(demanding))):
        Desk("gemma4", ("f",), tools=[("f", tool(demanding))])


@pytest.mark.parametrize("notation", NOTATIONS)
def test_the_schemas_of_tools_may_have_it_too(notation: str) -> None:
    parts = {f"p{at}": idle for at, idle in enumerate(IDLE)}
    parts |= {name: {"type": "string", "format": name} for name in UNKNOWN_FORMATS}
    desk = Desk(notation, ("f",), tools=[("f", {"type": "object", "properties": parts})])
    assert desk.calls(desk.random_reply(3))


def test_a_property_may_be_called_like_a_keyword() -> None:
    wanted = {"properties": {"not": False, "format": {"const": 1}}, "required": ["format"]}
    grammar = grammar_of(schema({"type": "object", "additionalProperties": False, **wanted}))
    write(grammar, '{"format": 1}')
    assert grammar.is_complete
    grammar = grammar_of(schema({"type": "object", "properties": {"uniqueItems": False}}))
    write(grammar, '{"uniqueItem')
    assert ord("s") not in allowed(grammar)


@pytest.mark.parametrize("name", UNKNOWN_FORMATS)
def test_a_format_that_is_not_known_says_nothing(name: str) -> None:
    write(grammar_of(schema({"type": "string", "format": name, "maxLength": 9})), '"any text"')


def test_fields_of_pydantic_are_taken() -> None:
    class Upload(BaseModel):
        place: Path
        secret: SecretStr
        body: bytes

    document = '{"place": "a/b", "secret": "x", "body": "y"}'
    grammar = grammar_of(schema(Upload.model_json_schema()))
    write(grammar, document)
    assert grammar.is_complete
