"""Bodies that no generator of JSON makes: the good example of an operation with one value replaced by odd text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MARK = "-the-odd-value-"
ODD_VALUES = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e-999",
    "-0",
    "-0.0",
    "1.0",
    "1" * 400,
    "-" + "1" * 400,
    "1" * 5000,
    "18446744073709551616",
    "9223372036854775808",
    "-9223372036854775809",
    "2147483648",
    "4294967296",
    "0",
    "true",
    "null",
    '""',
    '" "',
    '"\\u0000"',
    '"a\\u0000b"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\ud83d\\ude00"',
    '"\ufffe\uffff\u202e"',
    '"\ud800"',
    '"\n"',
    '"' + "x" * 100_000 + '"',
    '"../../etc/passwd"',
    "[]",
    "{}",
    '{"": ""}',
    '{"a": 1, "a": 2}',
    "[" * 900 + "]" * 900,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 400 + "1" + "}" * 400,
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    "[" * 100_000,
    "[0" + ",0" * 50_000 + "]",
    "",
    "\x00",
    "'a'",
)
"""Texts that stand in a body where a value should."""


def odd_body(example: Mapping[str, Any], dice: random.Random, names: Sequence[str]) -> bytes:
    """The example with one of its values, or one of the fields `names` that it may have, replaced or added."""
    body = json.loads(json.dumps(example))
    holder, key = dice.choice([*_places(body), *((body, name) for name in names)])
    holder[key] = _MARK
    text = json.dumps(body).replace(json.dumps(_MARK), dice.choice(ODD_VALUES))
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place within a value, as its holder and its key there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)
