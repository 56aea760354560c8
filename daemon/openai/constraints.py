"""What an answer is asked to be: `response_format`, and the `guided_*` fields that vLLM made common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from ...engine.protocol import Constraint
from ..errors import InvalidRequest
from ..http.json_body import json_text

FORMATS = ("text", "json_object", "json_schema")
"""What the type of a `response_format` may be."""
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
        yield Constraint("json_schema", json_text(schema), "response_format")
    for name, value in guided.items():
        if value is not None:
            yield GUIDED[name].read(value, name)


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
    raise _invalid(f"response_format.type: expected {_one_of(FORMATS)}", "response_format.type")


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
    return Constraint("json_schema", json_text(_object(value, name)), name)


def _guided_regex(value: str, name: str) -> Constraint:
    return Constraint("regex", value, name)


def _guided_grammar(value: str, name: str) -> Constraint:
    return Constraint("lark", value, name)


def _guided_choice(value: list[str], name: str) -> Constraint:
    return Constraint("lark", f"start: {' | '.join(map(_quoted, value))}", name)


def _quoted(text: str) -> str:
    """A text as Lark writes it, which is as JSON does but for one character."""
    return json_text(text).replace("\x7f", "\\u007f")


class Guided(NamedTuple):
    """A `guided_*` field: the type that its value must have, the same in words, and the constraint that it is."""

    type: Any
    words: str
    constraint: Callable[[Any, str], Constraint]

    def read(self, value: Any, name: str) -> Constraint:
        """Raises InvalidRequest."""
        try:
            return self.constraint(msgspec.convert(value, self.type), name)
        except msgspec.ValidationError:
            raise _invalid(f"{name}: expected {self.words}", name) from None


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Texts = Annotated[list[_Text], msgspec.Meta(min_length=1)]
GUIDED = {
    "guided_json": Guided(str | dict[str, Any], "a JSON Schema, which is an object", _guided_json),
    "guided_regex": Guided(_Text, "a text that is not empty", _guided_regex),
    "guided_choice": Guided(_Texts, "a list of one or more texts that are not empty", _guided_choice),
    "guided_grammar": Guided(_Text, "a text that is not empty", _guided_grammar),
}


def _one_of(words: Sequence[str]) -> str:
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}"


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
