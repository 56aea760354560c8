"""Request bodies in JSON, and errors that name the field at fault."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from ..errors import InvalidRequest

T = TypeVar("T")

_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_WRONG_TYPE = re.compile(r"Expected `(.+)`, got `(.+)`")
_MISSING = re.compile(r"Object missing required field `(.+)`")


def decode_body(body: bytes, kind: type[T]) -> T:
    """The body as a `kind` of msgspec. Raises InvalidRequest: bad JSON, a missing field, a wrong type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from None


def decode_own(body: bytes, kind: type[T]) -> T:
    """The body of one of agentserve's own routes. Raises InvalidRequest, always as `invalid_json`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request body is wrong: {error}", code="invalid_json") from None


def json_text(value: Any) -> str:
    """A part of a body as JSON again. Raises InvalidRequest: what could just be decoded may be too deep to encode."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> InvalidRequest:
    return InvalidRequest("The request body is nested too deeply", code="invalid_json")


def _wrong_type(text: str) -> InvalidRequest:
    what, _, path = text.partition(" - at `$")
    param = path.rstrip("`").lstrip(".")
    if match := _MISSING.fullmatch(what):
        param = f"{param}.{match[1]}".lstrip(".")
        return InvalidRequest(f"{param} is required", param=param, code="missing_required_parameter")
    if match := _WRONG_TYPE.fullmatch(what):
        expected, got = (" or ".join(_TYPES.get(t, t) for t in side.split(" | ")) for side in match.groups())
        what = f"expected {expected}, got {got}"
    return InvalidRequest(f"{param or 'The request body'}: {what}", param=param or None, code="invalid_type")
