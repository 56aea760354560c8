"""The kinds of values that options have: how each is read from text, from TOML or from a typed flag.

A parser takes what a source gave and returns the value, or raises ValueError that says what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_N = TypeVar("_N", int, float)

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """`python` is the type that a command line shows; `parse` also takes text for every kind."""

    name: str
    python: type
    parse: Callable[[Any], Any]


def text() -> Kind:
    """A text that is not empty."""
    return Kind("text", str, _text)


def integer(low: int, high: int | None = None) -> Kind:
    """A whole number within limits that are both allowed values."""
    return Kind("integer", int, lambda raw: _within(_integer(raw), low, high))


def number(low: float, high: float | None = None) -> Kind:
    """A finite number within limits that are both allowed values."""
    return Kind("number", float, lambda raw: _within(_number(raw), low, high))


def switch() -> Kind:
    """1, true, yes, on or 0, false, no, off, in any case."""
    return Kind("switch", bool, _switch)


def size(low: int = 0) -> Kind:
    """Bytes: a whole number, or one with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024)."""
    return Kind("size", str, lambda raw: _within(_size(raw), low, None))


def choice(*allowed: str) -> Kind:
    """One of the given words, in any case."""

    def parse(raw: Any) -> str:
        word = _text(raw).lower()
        if word not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return word

    return Kind("choice", str, parse)


def names() -> Kind:
    """A list of texts, or one text with commas."""
    return Kind("names", str, _names)


def some_of(*allowed: str) -> Kind:
    """A list of words out of these, or one text with commas."""

    def parse(raw: Any) -> tuple[str, ...]:
        given = _names(raw)
        if wrong := [name for name in given if name not in allowed]:
            raise ValueError(f"expected some of {', '.join(allowed)}, not {wrong[0]!r}")
        return given

    return Kind("names", str, parse)


def table(values: Kind | None = None) -> Kind:
    """A TOML table from text to text, or to values of another kind."""
    parse = _text if values is None else values.parse
    return Kind("table", dict, lambda raw: _table(raw, parse))


def device() -> Kind:
    """A device as OpenVINO names it, such as CPU or GPU.1, in any case."""

    def parse(raw: Any) -> str:
        word = _text(raw).upper()
        if not re.fullmatch(r"[A-Z]+(\.\d+)?", word):
            raise ValueError("expected a device such as CPU or GPU.1")
        return word

    return Kind("device", str, parse)


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("expected a text that is not empty")
    return raw.strip()


def _integer(raw: Any) -> int:
    try:
        if isinstance(raw, str):
            return int(raw, 10)
    except ValueError:
        raise ValueError("expected a whole number") from None
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise ValueError("expected a whole number")  # noqa: TRY004 (a kind raises ValueError alone)
    return raw


def _number(raw: Any) -> float:
    try:
        value = math.nan if isinstance(raw, bool) else float(raw)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("expected a number")
    return value


def _switch(raw: Any) -> bool:
    word = str(raw).strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("expected 1/true/yes/on or 0/false/no/off")
    return word in _TRUE


def _size(raw: Any) -> int:
    match = _SIZE.fullmatch(str(raw).strip())
    unit = match and _UNITS.get(match[2].lower())
    if isinstance(raw, bool) or not match or not unit:
        raise ValueError("expected bytes or a size such as 4GB or 512MiB")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def _names(raw: Any) -> tuple[str, ...]:
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, (list, tuple)):
        raise ValueError("expected a list of texts")  # noqa: TRY004 (a kind raises ValueError alone)
    return tuple(_text(item) for item in items)


def _table(raw: Any, parse: Callable[[Any], Any]) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise ValueError("expected a table of texts")  # noqa: TRY004 (a kind raises ValueError alone)
    return {_text(key): parse(value) for key, value in raw.items()}


def _within(value: _N, low: float, high: float | None) -> _N:
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"expected {limits}")
    return value
