"""`structured_outputs`, the object that took the place of vLLM's `guided_*` fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...engine.protocol import Constraint
from ..errors import InvalidRequest
from .constraints import GUIDED

STRUCTURED_OUTPUTS = "structured_outputs"
ANY_OBJECT = "json_object"
"""Asks for a JSON object of any shape."""
KINDS = {name.removeprefix("guided_"): name for name in GUIDED}
"""Each constraint that may be in the object, and the older field that means the same."""


def structured_output(given: Any) -> Constraint | None:
    """The constraint that the object asks for, None if it asks for none.

    Raises InvalidRequest, which names the field at fault; also for two constraints, and for an option not served.
    """
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _invalid("expected an object", STRUCTURED_OUTPUTS)
    asked = list(_asked({name: value for name, value in given.items() if value is not None}))
    if not asked:
        return None
    if len(asked) > 1:
        raise two_constraints(*asked[:2])
    return asked[0]


def two_constraints(one: Constraint, other: Constraint) -> InvalidRequest:
    """The error of a request that asks for both."""
    message = f"only one of {one.param} and {other.param} may constrain the answer"
    return InvalidRequest(message, param=other.param, code="invalid_value")


def _asked(given: dict[str, Any]) -> Iterator[Constraint]:
    for name, value in given.items():
        where = f"{STRUCTURED_OUTPUTS}.{name}"
        if name in KINDS:
            yield GUIDED[KINDS[name]].read(value, where)
        elif name == ANY_OBJECT:
            if not isinstance(value, bool):
                raise _invalid("expected true or false", where)
            if value:
                yield GUIDED[KINDS["json"]].read({"type": "object"}, where)
        elif value is not False:
            message = f"{where} is not supported by this server"
            raise InvalidRequest(message, param=where, code="unsupported_parameter")


def _invalid(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {message}", param=where, code="invalid_value")
