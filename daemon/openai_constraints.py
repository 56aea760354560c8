"""What an answer is asked to be: `response_format`, and the `guided_*` fields that vLLM made common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ..engine.protocol import Constraint
from .errors import InvalidRequest

_FORMATS = "'text', 'json_object' or 'json_schema'"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def answer_constraint(response_format: Any, guided: Mapping[str, Any]) -> Constraint | None:
    """The constraint that a request asks for, None if it asks for none.

    `guided` are the values of the fields `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`, with
    None for absent ones. Raises InvalidRequest, which names the field at fault; also for two constraints at once.
    """
    asked = list(_asked(response_format, guided))
    if len(asked) > 1:
        names = " and ".join(constraint.param for constraint in asked)
        raise _invalid(f"only one of {names} may constrain the answer", asked[1].param)
    return asked[0] if asked else None


def _asked(response_format: Any, guided: Mapping[str, Any]) -> Iterator[Constraint]:
    schema = _schema_of_format(response_format)
    if schema is not None:
        yield Constraint("json_schema", _json(schema), "response_format")
    for name, value in guided.items():
        if value is not None:
            yield GUIDED[name](value, name)


def _schema_of_format(response_format: Any) -> dict[str, Any] | None:
    """The schema of a `response_format`; None where any text will do."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            # llama.cpp's servers take a schema here.
            return _object(response_format.get("schema"), "response_format.schema")
        case "json_schema":
            where = "response_format.json_schema"
            named = response_format.get("json_schema")
            if not isinstance(named, dict):
                raise _invalid(f"{where}: expected an object with a schema", where)
            return _object(named.get("schema"), f"{where}.schema")
    raise _invalid(f"response_format.type: expected {_FORMATS}", "response_format.type")


def _object(schema: Any, where: str) -> dict[str, Any]:
    if schema is None:
        return _ANY_OBJECT
    if not isinstance(schema, dict):
        raise _invalid(f"{where}: expected a JSON Schema, which is an object", where)
    return schema


def _guided_json(value: Any, name: str) -> Constraint:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _invalid(f"{name}: not JSON: {error}", name) from None
    return Constraint("json_schema", _json(_object(value, name)), name)


def _guided_regex(value: Any, name: str) -> Constraint:
    return Constraint("regex", _text(value, name), name)


def _guided_grammar(value: Any, name: str) -> Constraint:
    return Constraint("lark", _text(value, name), name)


def _guided_choice(value: Any, name: str) -> Constraint:
    if not (isinstance(value, list) and value and all(isinstance(text, str) and text for text in value)):
        raise _invalid(f"{name}: expected a list of one or more texts that are not empty", name)
    return Constraint("lark", f"start: {' | '.join(map(_json, value))}", name)


GUIDED: dict[str, Callable[[Any, str], Constraint]] = {
    "guided_json": _guided_json,
    "guided_regex": _guided_regex,
    "guided_choice": _guided_choice,
    "guided_grammar": _guided_grammar,
}


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise _invalid(f"{name}: expected a text that is not empty", name)
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
