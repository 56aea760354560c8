"""JSON Schemas for notations other than JSON: each as alternatives without references, unions and lists of types.

What a schema asserts and the grammar of a notation can't promise raises `Unsupported`, with the keyword's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ..tool_formats.tools import resolved, type_of
from .idle_keywords import demanding
from .schema_shapes import check_shapes

Schema = dict[str, Any]

_REFUSED = frozenset(
    {
        *(
            "not",
            "if",
            "then",
            "else",
            "contains",
            "minContains",
            "maxContains",
            "uniqueItems",
            "propertyNames",
        ),
        *(
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
            "unevaluatedItems",
            "unevaluatedProperties",
        ),
        *("additionalItems", "$dynamicRef", "$recursiveRef"),
    }
)
_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "format", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}
_MEANINGFUL = frozenset({*_TYPE_OF_KEYWORD, "type", "enum"})
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_MOST = 200  # alternatives of one schema
_DEPTH = 16  # references and unions within each other


class Unsupported(Exception):
    """A schema asserts what the grammar can't promise; `keywords` are the names."""

    def __init__(self, *keywords: str) -> None:
        super().__init__(", ".join(keywords))
        self.keywords = list(keywords)


def alternatives(schema: Any, root: Mapping[str, Any], depth: int = _DEPTH) -> list[Schema]:
    """Schemas of which a value has to fit one; each has one type at most, or `enum`, and neither has `{}`, which any
    value fits. None at all: no value fits.

    A keyword without a `type` beside it stands for the type that it is about. Raises Unsupported, and ValueError for a
    keyword whose value is of the wrong kind.
    """
    if not isinstance(schema, Mapping):
        return [{}] if schema is True else []
    if not depth:
        raise Unsupported(f"$ref or anyOf more than {_DEPTH} deep")
    check_shapes(schema)
    schema = demanding(schema)
    if refused := sorted(_REFUSED & schema.keys()):
        raise Unsupported(*refused)
    parts = [_own(schema), *_joined(schema, root, depth)]
    found = [one for chosen in product(*parts) for one in _all_of(chosen)]
    if len(found) > _MOST:
        raise Unsupported(f"more than {_MOST} combinations of anyOf")
    return [_typed(one) for one in found]


def check_patterns(schema: Schema) -> None:
    """Raises Unsupported where a property that may be written is of a pattern too, whose schema then holds besides."""
    names = [*schema.get("properties", {}), *schema.get("required", ())]
    for pattern in schema.get("patternProperties", {}):
        try:
            fits = any(re.search(pattern, name) for name in names)
        except re.error:
            fits = True
        if fits:
            raise Unsupported(
                f"patternProperties {pattern!r} for a property that has a schema or is required"
            )


def _own(schema: Mapping[str, Any]) -> list[Schema]:
    """What a schema says itself, for each of its types."""
    own = {key: value for key, value in schema.items() if key in _MEANINGFUL}
    if "const" in schema:
        own["enum"] = [value for value in own.get("enum", [schema["const"]]) if _same(value, schema["const"])]
    types = own.get("type")
    return [{**own, "type": one} for one in types] if isinstance(types, list) else [own]


def _joined(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[list[Schema]]:
    """The alternatives of each schema that a value has to fit besides."""
    if "$ref" in schema:
        target = resolved(schema, root)
        if target is schema:
            raise Unsupported(f"$ref {schema['$ref']!r}, which leads nowhere")
        yield alternatives(target, root, depth - 1)
    for part in schema.get("allOf", ()):
        yield alternatives(part, root, depth - 1)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            each = [alternatives(part, root, depth - 1) for part in schema[union]]
            if union == "oneOf" and not _is_disjoint(each):
                raise Unsupported("oneOf whose schemas a value can fit more than one of (use anyOf)")
            yield [one for part in each for one in part]


def _all_of(schemas: tuple[Schema, ...]) -> list[Schema]:
    """The schema of the values that fit all; none when no value can."""
    merged: Schema = {}
    for schema in schemas:
        _check_closed(merged, schema)
        _check_closed(schema, merged)
        for key, value in schema.items():
            merged[key] = _both(key, merged[key], value) if key in merged else value
        if merged.get("type", True) is None:
            return []
    return [merged]


def _check_closed(closed: Schema, other: Schema) -> None:
    """Raises Unsupported where `closed` says what keys that only `other` has must be."""
    others = set(other.get("properties", {})) | set(other.get("required", ()))
    if closed.get("additionalProperties", True) is not True and others - set(closed.get("properties", {})):
        raise Unsupported("additionalProperties in a part of allOf, anyOf or oneOf")


def _both(key: str, one: Any, other: Any) -> Any:
    """The value of a keyword with the sense of both; a type that no value has is None."""
    if one == other:
        return one
    match key:
        case "type":
            return "integer" if {one, other} == {"integer", "number"} else None
        case "enum":
            return [value for value in one if any(_same(value, again) for again in other)]
        case "required":
            return [*one, *(name for name in other if name not in one)]
        case "properties":
            shared = {name: {"allOf": [one[name], other[name]]} for name in one.keys() & other.keys()}
            return one | other | shared
        case "additionalProperties" if True in (one, other):
            return other if one is True else one
    if key in _LARGER or key in _SMALLER:
        return max(one, other) if key in _LARGER else min(one, other)
    raise Unsupported(f"{key} that two parts of allOf differ in")


def _typed(schema: Schema) -> Schema:
    """The schema with the type that its keywords are about, and values that are listed only where they have it."""
    if "enum" in schema:
        if others := sorted(schema.keys() - {"enum", "type"}):
            raise Unsupported(f"enum beside {', '.join(others)}")
        return {"enum": [value for value in schema["enum"] if _has_type(value, schema.get("type"))]}
    kinds = sorted({_TYPE_OF_KEYWORD[key] for key in schema if key != "type"})
    if "type" in schema or not kinds:
        return schema
    if len(kinds) > 1:
        raise Unsupported(f"keywords for {' and '.join(kinds)} without a type")
    return {**schema, "type": kinds[0]}


def _has_type(value: Any, wanted: str | None) -> bool:
    kind = type_of(value)
    return wanted is None or wanted == kind or (wanted == "number" and kind == "integer")


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: `True` is not 1."""
    return one == other and type_of(one) == type_of(other)


def _is_disjoint(each: list[list[Schema]]) -> bool:
    """Whether it is plain to see that no value fits schemas of two of these."""
    pairs = [(a, b) for at, one in enumerate(each) for other in each[:at] for a in one for b in other]
    return all(_are_apart(a, b) for a, b in pairs)


def _are_apart(one: Schema, other: Schema) -> bool:
    kinds, others = _kinds(one), _kinds(other)
    if kinds is not None and others is not None and not kinds & others:
        return True
    if "enum" in one and "enum" in other:
        return not any(_same(value, again) for value in one["enum"] for again in other["enum"])
    tags, other_tags = _tags(one), _tags(other)
    return any(
        not any(_same(value, again) for value in tags[name] for again in other_tags[name])
        for name in tags.keys() & other_tags.keys()
    )


def _kinds(schema: Schema) -> set[str] | None:
    """The types of its values, integers being numbers; None for any."""
    kinds = {type_of(value) for value in schema["enum"]} if "enum" in schema else {schema.get("type")}
    return None if None in kinds else {"number" if kind == "integer" else str(kind) for kind in kinds}


def _tags(schema: Schema) -> dict[str, list[Any]]:
    """The required properties that have one of a few values."""
    parts = {name: schema.get("properties", {}).get(name) for name in schema.get("required", ())}
    listed = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
    return {name: tag for name, part in listed.items() if (tag := _listed(part)) is not None}


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")
