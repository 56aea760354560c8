"""The scanner takes what the standard library takes, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agentserve.engine.tool_formats.json_scanner import MAX_DEPTH, JsonScanner
from hypothesis import given, settings
from hypothesis import strategies as st


def scanned(pieces: list[str]) -> str | None:
    """What comes out for a whole value with a space behind it; None for anything else."""
    scanner, shown = JsonScanner(), ""
    for piece in [*pieces, " "]:
        rest = piece
        while rest and not scanner.done:
            result = scanner.push(rest)
            if scanner.failed:
                return None
            shown, rest = shown + result.text, rest[result.length :]
        if rest.strip():
            return None
    return shown if scanner.done else None


def strict(text: str) -> Any:
    def refused(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refused)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@settings(deadline=None)
@given(values, st.sampled_from([None, 1]), st.booleans())
def test_every_value_passes_unchanged(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert (scanned([text]) or "").rstrip() == text
    assert (scanned(list(text)) or "").rstrip() == text


SYNTAX = st.lists(
    st.sampled_from([*'{}[]:,"\\ \n-+.eE0129', '"a"', "true", "null", "1.5", "\\u00e9", "\\u12", "x"]),
    max_size=12,
)


@settings(deadline=None)
@given(SYNTAX)
def test_it_takes_what_the_standard_library_takes(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        # Control characters in strings are let through, as escapes.
        value = json.loads(text, strict=False, parse_constant=strict)
    except ValueError:
        assert scanned(parts) is None
    else:
        assert strict(scanned(parts) or "") == value


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "tru", "True", "01", "1.", ".5", "+1", "1e", "-"]
)
def test_words_and_numbers_that_are_not_json_are_refused(text: str) -> None:
    assert scanned([text]) is None


def test_control_characters_and_lone_surrogates_in_strings_become_escapes() -> None:
    assert scanned(['"a\n\x00\ud800"']) == '"a\\u000a\\u0000\\ud800"'


def test_depth_has_a_limit() -> None:
    assert scanned(["[" * MAX_DEPTH + "]" * MAX_DEPTH]) is not None
    assert scanned(["[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)]) is None


def test_it_stops_behind_the_value_and_before_what_is_wrong() -> None:
    scanner = JsonScanner()
    assert scanner.push('{"a": 1} more').length == len('{"a": 1}')
    assert scanner.done
    scanner = JsonScanner()
    assert scanner.push('{"a": 1 "b"').length == len('{"a": 1 ')
    assert scanner.failed
    scanner = JsonScanner()
    assert scanner.push('"a\\d"').length == len('"a\\')
    assert scanner.failed
