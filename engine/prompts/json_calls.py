"""Tool calls compared as values: clients write the JSON of a call anew, with other spaces, escapes or key order."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import Any

_DECODER = json.JSONDecoder()


def canonical(text: str) -> str:
    """One spelling for all JSON texts of equal value (1 and 1.0 are not equal); other text as it is."""
    try:
        return _canonical(json.loads(text))
    except (ValueError, RecursionError):
        return text


def end_of_equal_text(expected: str, text: str, start: int, arguments: AbstractSet[str]) -> int | None:
    """Where `expected` ends if it stands in `text` at `start`, and None if something else does.

    Everything is compared character by character but JSON objects that belong to a tool call: those whose value,
    or one of whose values, is one of `arguments` (as `canonical` writes them).
    """
    if text.startswith(expected, start):
        return start + len(expected)
    done, position = 0, start
    while arguments and (brace := expected.find("{", done)) >= 0:
        plain = expected[done:brace]
        if not text.startswith(plain, position):
            return None
        position += len(plain)
        ends = _ends_of_equal_objects(expected, brace, text, position, arguments)
        if ends is None and not text.startswith("{", position):
            return None
        done, position = ends or (brace + 1, position + 1)
    return position + len(expected) - done if text.startswith(expected[done:], position) else None


def _ends_of_equal_objects(
    one: str, at: int, other: str, position: int, arguments: AbstractSet[str]
) -> tuple[int, int] | None:
    """Where the objects that begin at both positions end, if both are the same call."""
    try:
        first, end = _DECODER.raw_decode(one, at)
        second, other_end = _DECODER.raw_decode(other, position)
        are_one_call = _canonical(first) == _canonical(second) and _is_call(first, arguments)
    except (ValueError, RecursionError):
        return None
    return (end, other_end) if are_one_call else None


def _is_call(value: dict[str, Any], arguments: AbstractSet[str]) -> bool:
    return _canonical(value) in arguments or any(_canonical(part) in arguments for part in value.values())


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
