"""Random JSON Schemas, and what a small model needs to fill them in within a few hundred tokens."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
_WORDS = (
    "name",
    "city",
    "price",
    "count",
    "tags",
    "items",
    "status",
    "owner",
    "notes",
    "size",
    "color",
    "ready",
    "level",
)


def random_schema(dice: random.Random, depth: int = 3) -> Schema:
    """An object with a few fields of every kind that requests are made of; strings and lists have limits."""
    fields = dice.sample(_WORDS, dice.randint(1, 4))
    properties = {field: _value(dice, depth - 1) for field in fields}
    if dice.random() < 0.2:
        more: Schema = {"patternProperties": {"^x[0-9]$": {"type": "boolean"}}, "additionalProperties": False}
        return {
            "type": "object",
            "properties": properties,
            "required": fields,
            **more,
            "maxProperties": len(fields) + 1,
        }
    required = fields[: dice.randint(1, len(fields))]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(dice: random.Random, depth: int) -> Schema:
    leaves = [_text, _choice, _number, _integer, _format, _pattern, _scalar, _constant, _nullable]
    kinds = [*leaves, _list, _union, random_schema] if depth > 0 else leaves
    return dice.choice(kinds)(dice, depth)


def _text(dice: random.Random, _depth: int) -> Schema:
    least = dice.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + dice.randint(0, 20)}


def _choice(dice: random.Random, _depth: int) -> Schema:
    return {"enum": [*dice.sample(["red", "green", "blé", 'say "hi"', "a\\b"], 3), None, dice.randint(0, 9)]}


def _number(dice: random.Random, _depth: int) -> Schema:
    low = dice.randint(-50, 50)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + dice.randint(1, 100)}


def _integer(dice: random.Random, _depth: int) -> Schema:
    low = dice.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 1000)}


def _format(dice: random.Random, _depth: int) -> Schema:
    return {"type": "string", "format": dice.choice(["date", "time", "uuid", "ipv4"])}


def _pattern(dice: random.Random, _depth: int) -> Schema:
    return {
        "type": "string",
        "pattern": dice.choice(["^[A-Z]{2}[0-9]{3}$", "^(a|bc){1,3}$", r"^#[0-9a-f]{6}$"]),
    }


def _scalar(dice: random.Random, _depth: int) -> Schema:
    return {"type": dice.choice(["boolean", "null"])}


def _constant(dice: random.Random, _depth: int) -> Schema:
    return {"const": dice.choice(["fixed", 7, True, {"a": [1, 2]}])}


def _nullable(_dice: random.Random, _depth: int) -> Schema:
    return {"type": ["string", "null"], "maxLength": 12}


def _list(dice: random.Random, depth: int) -> Schema:
    least = dice.randint(0, 2)
    return {
        "type": "array",
        "items": _value(dice, depth - 1),
        "minItems": least,
        "maxItems": least + dice.randint(0, 2),
    }


def _union(dice: random.Random, depth: int) -> Schema:
    return {
        "anyOf": [
            _value(dice, depth - 1),
            {
                "type": "object",
                "properties": {"kind": {"const": "none"}},
                "required": ["kind"],
                "additionalProperties": False,
            },
        ]
    }
