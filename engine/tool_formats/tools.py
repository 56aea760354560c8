"""What the tools of a request say about the types of their arguments (JSON Schema)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_DEPTH = 16  # references and unions within each other


class Tools:
    """The tools that a model may call, by name."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        """`parameters` are the schemas of the tools' arguments; `{}` is one that says nothing."""
        self._parameters = dict(parameters)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def types(self, tool: str, argument: str) -> frozenset[str]:
        """The JSON types that the schema allows for an argument; none when it does not say."""
        root = self._parameters.get(tool, {})
        properties = root.get("properties")
        schema = properties.get(argument) if isinstance(properties, Mapping) else None
        return frozenset(_types(schema, root, _DEPTH))

    def schema(self, tool: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments; `{}` says nothing."""
        return self._parameters.get(tool, {})

    def argument_names(self, tool: str) -> tuple[str, ...]:
        """The arguments of a tool in the order of its schema."""
        properties = self._parameters.get(tool, {}).get("properties")
        return tuple(properties) if isinstance(properties, Mapping) else ()


def read_tools(tools_json: str) -> Tools:
    """The tools of a request: a JSON list of OpenAI's function tools, or of the functions in them.

    Entries without a name are left out, and schemas that are no objects say nothing. Raises ValueError for a text that
    is not a JSON list.
    """
    entries = json.loads(tools_json)
    if not isinstance(entries, list):
        raise ValueError("tools should be a JSON list")  # noqa: TRY004 (the text is wrong, not its type)
    parameters = {}
    for entry in filter(_is_object, entries):
        function = entry["function"] if _is_object(entry.get("function")) else entry
        if isinstance(function.get("name"), str):
            schema = function.get("parameters")
            parameters[function["name"]] = schema if _is_object(schema) else {}
    return Tools(parameters)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not depth:
        return
    schema = resolved(schema, root)
    named = schema.get("type")
    listed = [named] if isinstance(named, str) else named
    if isinstance(listed, list):
        yield from (name for name in listed if name in TYPES)
        return
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    for value in values if isinstance(values, list) else ():
        yield type_of(value)
    for union in ("anyOf", "oneOf", "allOf"):
        for part in schema[union] if isinstance(schema.get(union), list) else ():
            yield from _types(part, root, depth - 1)


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference within the document names (`#/$defs/…`, `#`), or the schema itself."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return schema
    target: Any = root
    for part in reference.split("/")[1:]:
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if _is_object(target) else None
    return target if isinstance(target, Mapping) else schema


def type_of(value: object) -> str:
    """The JSON type of a parsed value; a number without a fraction is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
