"""Keywords of JSON Schema that demand nothing with the value that they have.

llguidance refuses most of them by their mere names, and generators of schemas write them out all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

FORMATS = frozenset(
    ("date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "hostname", "email", "uri")
)
"""The formats that are kept. Any other is a note to the reader, which is what JSON Schema takes formats for."""


def demanding(schema: Schema) -> dict[str, Any]:
    """The keywords of one schema that demand something, or that say nothing but were never refused."""
    return {key: value for key, value in schema.items() if key not in _IDLE or not _IDLE[key](value, schema)}


def _fits_all(value: Any, _schema: Schema) -> bool:
    return value is True or (isinstance(value, Mapping) and not value)


def _is_false(value: Any, _schema: Schema) -> bool:
    return value is False


def _is_empty(value: Any, _schema: Schema) -> bool:
    return isinstance(value, Mapping) and all(part is True or part in ([], {}) for part in value.values())


def _has_no_pattern(value: Any, _schema: Schema) -> bool:
    return isinstance(value, Mapping) and not value


def _counts_nothing(_value: Any, schema: Schema) -> bool:
    """Whether as few elements and as many as you like may fit `contains`, or there is none."""
    least = schema.get("minContains", 1)
    return "contains" not in schema or (least == 0 and least is not False and "maxContains" not in schema)


def _is_unknown(value: Any, _schema: Schema) -> bool:
    return isinstance(value, str) and value not in FORMATS


_IDLE: dict[str, Callable[[Any, Schema], bool]] = {
    **dict.fromkeys(("uniqueItems", "not"), _is_false),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "propertyNames", "additionalItems"), _fits_all),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _is_empty),
    **dict.fromkeys(("contains", "minContains", "maxContains"), _counts_nothing),
    "patternProperties": _has_no_pattern,
    "format": _is_unknown,
}  # fmt: skip
