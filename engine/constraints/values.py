"""Values by a JSON Schema in notations that are almost JSON: lists and objects with other strings, keys and words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .alternatives import Schema, Unsupported, alternatives, check_patterns
from .lark import GrammarWriter
from .strings import expression

# Lists and objects within each other, fewer than any parser takes; where a schema says nothing of a value, much fewer.
_LEVELS, _FREE_LEVELS = 24, 4
# Numbers without limits. More digits than this, and a reader takes them for text or for infinity.
_LARGEST = 9 * 10**18
_INTEGER = "-?(0|[1-9][0-9]{0,18})"
_NUMBER = rf"{_INTEGER}(\.[0-9]{{1,17}})?([eE][+-]?[0-9]{{1,2}})?"
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_TYPES = ("string", "number", "boolean", "null", "array", "object")

Key = Callable[[str], str | None]


class Spelling(Protocol):
    """How a notation writes what is not as in JSON. The methods return expressions; None for what it can't write."""

    @property
    def comma(self) -> str:
        """What stands between two elements or members."""
        ...

    @property
    def words(self) -> Mapping[bool | None, str]:
        """How true, false and null are spelled."""
        ...

    def string(self, schema: Schema) -> str:
        """A string by its schema."""
        ...

    def literal(self, text: str) -> str | None:
        """A string with exactly this text."""
        ...

    def key(self, name: str) -> str | None:
        """A key of an object, with what stands before its value."""
        ...

    def free_key(self, taken: Sequence[str]) -> str:
        """Any key but those that are `taken`, with what stands before its value."""
        ...


class Values:
    """The values of one schema's document: `root` is what its references lead into."""

    def __init__(self, writer: GrammarWriter, spelling: Spelling, root: Schema) -> None:
        self._writer = writer
        self._spelling = spelling
        self._root = root
        self._comma = writer.quoted(spelling.comma)
        self._known: dict[tuple[str, int], str | None] = {}

    def arguments(self, key: Key | None = None) -> str | None:
        """The members of an object by the root, all of which the schema names; None where no object fits it.

        `key` writes their keys, if not as in other objects. Raises Unsupported, and ValueError for a damaged schema.
        """
        written = key or self._spelling.key
        each = alternatives({"type": "object", **self._root}, self._root)
        objects = [one for one in each if one.get("type") == "object"]
        return self._any_of(self._members(one, _LEVELS, written, None) for one in objects)

    def _value(self, schema: Any, depth: int) -> str | None:
        """A value by a schema, with at most `depth` lists and objects within each other; None where none fits."""
        known = json.dumps(schema, sort_keys=True), depth
        if known not in self._known:
            each = alternatives(schema, self._root)
            self._known[known] = self._any_of(self._one(one, depth) for one in each)
        return self._known[known]

    def _any_of(self, expressions: Iterable[str | None]) -> str | None:
        possible = [one for one in expressions if one is not None]
        if len(possible) == 1 and possible[0].isidentifier():
            return possible[0]
        return self._writer.rule(" | ".join(one or '""' for one in possible)) if possible else None

    def _one(self, schema: Schema, depth: int) -> str | None:
        if "enum" in schema:
            return self._any_of(self._literal(value, depth) for value in schema["enum"])
        match schema.get("type"):
            case "string":
                return self._spelling.string(schema)
            case "boolean":
                return self._any_of(self._literal(value, depth) for value in (True, False))
            case "null":
                return self._literal(None, depth)
            case "integer" | "number":
                return self._number(schema)
            case "array":
                return self._enclosed("[", self._elements(schema, depth - 1), "]") if depth else None
            case "object":
                return self._enclosed("{", self._object(schema, depth - 1), "}") if depth else None
        return self._any_of(self._value({"type": kind}, min(depth, _FREE_LEVELS)) for kind in _TYPES)

    def _enclosed(self, begin: str, inner: str | None, end: str) -> str | None:
        writer = self._writer
        return None if inner is None else writer.all_of(writer.quoted(begin), inner, writer.quoted(end))

    def _literal(self, value: Any, depth: int) -> str | None:
        """Exactly this value."""
        if isinstance(value, str):
            return self._spelling.literal(value)
        if isinstance(value, list | dict) and not depth:
            return None
        if isinstance(value, list):
            return self._enclosed("[", self._row([self._literal(part, depth - 1) for part in value]), "]")
        if isinstance(value, dict):
            members = [
                (self._spelling.key(key), self._literal(part, depth - 1)) for key, part in value.items()
            ]
            return self._enclosed("{", self._row([self._both(key, part) for key, part in members]), "}")
        if isinstance(value, bool | None):
            return self._writer.quoted(self._spelling.words[value])
        is_finite = isinstance(value, int) or math.isfinite(value)
        return self._writer.quoted(json.dumps(value)) if is_finite else None

    def _both(self, key: str | None, value: str | None) -> str | None:
        return None if key is None or value is None else self._writer.all_of(key, value)

    def _row(self, parts: Sequence[str | None]) -> str | None:
        """All parts, with commas between them."""
        possible = [part for part in parts if part is not None]
        return f" {self._comma} ".join(possible) if len(possible) == len(parts) else None

    def _number(self, schema: Schema) -> str:
        limits = {key: schema[key] for key in _LIMITS if key in schema}
        if not limits:
            return self._writer.rule(expression(_INTEGER if schema["type"] == "integer" else _NUMBER))
        low, high = (
            schema.get(f"{side}imum", schema.get(f"exclusiveM{side[1:]}imum")) for side in ("min", "max")
        )
        filled = {"minimum": -_LARGEST - abs(high or 0)} if low is None else {}
        filled |= {"maximum": _LARGEST + abs(low or 0)} if high is None else {}
        return self._writer.json(self._writer.json_text({"type": schema["type"], **limits, **filled}))

    def _elements(self, schema: Schema, depth: int) -> str | None:
        """The elements of a list."""
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        values = [self._value(part, depth) for part in schema.get("prefixItems", ())[:most]]
        first = values[: values.index(None)] if None in values else values
        item = self._value(schema.get("items", True), depth) if first == values else None
        if (item is None and least > len(first)) or (most is not None and most < least):
            return None
        return self._list(first, item, least, most)

    def _list(self, first: Sequence[str | None], item: str | None, least: int, most: int | None) -> str:
        """`first`, each of which may be missing with all behind it, and then items; `least` to `most` of all."""
        left = None if most is None else most - len(first)
        needed = max(least - len(first), 0)
        if item is None or left == 0:
            written = ""
        elif first:
            written = _repeated(f"{self._comma} {item}", needed, left)
        else:
            more = _repeated(f"{self._comma} {item}", max(needed - 1, 0), None if left is None else left - 1)
            written = _optional(self._writer.all_of(item, more), needed > 0)
        for at in range(len(first) - 1, -1, -1):
            one = self._writer.all_of(self._comma if at else "", first[at] or "", written)
            written = _optional(one, at < least)
        return written

    def _object(self, schema: Schema, depth: int) -> str | None:
        """The members of an object: those that the schema names, and others where it names none or says what they
        are."""
        named = "properties" in schema or "patternProperties" in schema
        others = schema.get("additionalProperties", not named)
        value = None if "patternProperties" in schema else self._value(others, depth)
        names = [*schema.get("properties", {}), *schema.get("required", ())]
        other = None if value is None else self._writer.all_of(self._spelling.free_key(names), value)
        return self._members(schema, depth, self._spelling.key, other)

    def _members(self, schema: Schema, depth: int, key: Key, other: str | None) -> str | None:
        """Members in the order of the schema, and any number of `other` ones; None where a required one is impossible."""
        properties, required = schema.get("properties", {}), schema.get("required", ())
        parts: list[tuple[str, bool]] = []
        check_patterns(schema)
        for name in dict.fromkeys([*properties, *required]):
            value = self._value(properties.get(name, schema.get("additionalProperties", True)), depth)
            if name in required and value is not None and key(name) is None:
                raise Unsupported(f"the required property {name!r}, whose name can't be written")
            member = self._both(key(name), value)
            if member is not None:
                parts.append((self._writer.rule(member), name in required))
            elif name in required:
                return None
        _check_counts(schema, parts, has_others=other is not None)
        return self._joined(parts, other)

    def _joined(self, parts: Sequence[tuple[str, bool]], other: str | None) -> str:
        """Members and commas. Behind a written member each further one has a comma before it."""
        more = "" if other is None else f"({self._comma} {other})*"
        first = [] if other is None else [self._writer.all_of(other, more)]
        is_optional = True
        for member, required in reversed(parts):
            first = [self._writer.all_of(member, more), *([] if required else first)]
            is_optional = is_optional and not required
            more = self._writer.rule(
                self._writer.all_of(_optional(f"{self._comma} {member}", required), more)
            )
        # A required member ends what may come first, however many optional ones stand before it.
        return _optional(" | ".join(first), not is_optional) if first else ""


def _check_counts(schema: Schema, parts: Sequence[tuple[str, bool]], *, has_others: bool) -> None:
    """Raises Unsupported for a number of members that has to be counted."""
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    if least > sum(required for _, required in parts):
        raise Unsupported("minProperties unless all properties are required")
    if most is not None and (has_others or most < len(parts)):
        raise Unsupported("maxProperties unless all properties are required")


def _optional(expression: str, is_required: bool) -> str:
    """The expression in brackets, which may be left out unless it is required."""
    return f"({expression}){'' if is_required else '?'}" if expression else ""


def _repeated(expression: str, least: int, most: int | None) -> str:
    return "" if most == 0 else f"({expression}){{{least},{'' if most is None else most}}}"
