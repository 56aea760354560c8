"""Of what kind the values of JSON Schema's keywords have to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..tool_formats.tools import TYPES


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: object) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return all(isinstance(kind, str) and kind in TYPES for kind in kinds)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping | bool)


def _is_list_of_schemas(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _is_object_of_schemas(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_schema, value.values()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


_SHAPES: dict[str, Callable[[object], bool]] = {
    "type": _is_type,
    "enum": _is_list,
    "required": _is_list_of_texts,
    **dict.fromkeys(("$ref", "pattern", "format"), _is_text),
    **dict.fromkeys(("items", "additionalProperties"), _is_schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _is_list_of_schemas),
    **dict.fromkeys(("properties", "patternProperties"), _is_object_of_schemas),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _is_number),
}


def check_shapes(schema: Mapping[str, Any]) -> None:
    """Raises ValueError for a keyword whose value is of the wrong kind."""
    for key, value in schema.items():
        if key in _SHAPES and not _SHAPES[key](value):
            raise ValueError(f"{key} has a value of the wrong kind")
