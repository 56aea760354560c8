"""Arguments that a model wrote as bare text, given the types of the tool's schema."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Literal

from .grammar import Fragment, Malformed, Reading, Source, read_until, stream_until
from .json_scanner import MAX_DEPTH
from .tools import type_of

_WORDS = {"true": True, "false": False, "null": None, "none": None}
_SURROGATE = re.compile("[\ud800-\udfff]")


class ObjectWriter:
    """Writes an object, member by member, into the open call. An argument that comes twice is malformed; a key within
    an argument that does is passed on, as in JSON, where the last one counts."""

    def __init__(self, *, is_argument: bool = False) -> None:
        self._is_argument = is_argument
        self._keys: set[str] = set()

    def key(self, key: str) -> Fragment:
        """The text up to the value of a member. Raises Malformed."""
        if key in self._keys and not self._is_argument:
            raise Malformed
        opener = ", " if self._keys else "{"
        self._keys.add(key)
        return Fragment(f"{opener}{json_text(key)}: ")

    def close(self) -> Fragment:
        return Fragment("}" if self._keys else "{}")


def typed_value(source: Source, ends: Sequence[str], types: AbstractSet[str]) -> Reading[None]:
    """The text up to the first of `ends`, which stays unread, as a JSON value of one of `types`.

    A value that can only be a string is passed on as it arrives. Raises Malformed when no end comes.
    """
    if types <= {"string"}:
        yield from string_value(source, ends)
    else:
        yield Fragment(as_json((yield from read_until(source, ends)), types))


def string_value(source: Source, ends: Sequence[str]) -> Reading[None]:
    """The text up to the first of `ends`, which stays unread, as a JSON string."""
    yield Fragment('"')
    if (yield from stream_until(source, ends, _within_string)) is None:
        raise Malformed
    yield Fragment('"')


def as_json(text: str, types: AbstractSet[str]) -> str:
    """The text as a value of the first kind that fits: another type than string, if `types` has it, or a string.

    Words may be spelled as in Python, and lists and objects be Python literals: some templates write them so.
    """
    for value in _readings(text.strip()):
        kind = type_of(value)
        if kind in types or (kind == "integer" and "number" in types):
            whole = isinstance(value, float) and kind == "integer" and "number" not in types
            return json_text(int(value) if whole else value)
    return json_text(text)


def _readings(text: str) -> list[Any]:
    """What the text may mean other than itself, the likeliest first."""
    if text.lower() in _WORDS:
        return [_WORDS[text.lower()]]
    values: list[Any] = []
    with suppress(ValueError, RecursionError):
        values.append(_storable(json.loads(text)))
    if not values and text[:1] in ("[", "{"):
        with suppress(Malformed):
            values.append(python_literal(parse_python(text, "eval")))
    return [value for value in values if not isinstance(value, str)]


def parse_python(text: str, mode: Literal["exec", "eval"]) -> ast.AST:
    """The syntax tree of Python code. Raises Malformed for other text."""
    try:
        with warnings.catch_warnings():
            # Windows paths hold escapes that Python warns of.
            warnings.simplefilter("ignore")
            return ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed from error


def python_literal(node: ast.AST) -> Any:
    """The value of a literal that JSON can hold. Raises Malformed for other expressions."""
    try:
        return _storable(ast.literal_eval(node))
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Malformed from error


def _storable(value: Any) -> Any:
    """The value itself. Raises ValueError or TypeError for one that JSON has no form for, or that is too deep."""
    if not _shallow(value, MAX_DEPTH):
        raise ValueError(f"more than {MAX_DEPTH} containers within each other")
    json.dumps(value, allow_nan=False)
    return value


def _shallow(value: Any, depth: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return depth >= 0 and all(_shallow(part, depth - 1) for part in parts)


def _within_string(text: str) -> Fragment:
    return Fragment(json_text(text)[1:-1])


def json_text(value: Any) -> str:
    """The value as JSON in characters that UTF-8 can hold."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
