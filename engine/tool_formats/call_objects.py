"""A call as a JSON object: `{"name": …, "arguments": {…}}`, or `parameters` in place of `arguments`."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from .grammar import (
    Begin,
    End,
    Fragment,
    Malformed,
    Reading,
    Source,
    literal,
    more,
    peek,
    require_name,
    space,
)
from .json_scanner import JsonScanner

_ARGUMENTS = ("arguments", "parameters")


class Head(NamedTuple):
    """A call up to its name; `arguments` stood before it, or None."""

    name: str
    arguments: str | None


def call_object(source: Source) -> Reading[None]:
    """A whole call object, without the End. Other keys than name and arguments are skipped."""
    yield from call_rest(source, (yield from call_head(source)))


def call_head(source: Source, before_name: AbstractSet[str] | None = None) -> Reading[Head]:
    """The object up to and including the name. With `before_name`, no other key may stand before it.

    Raises Malformed.
    """
    yield from literal(source, "{")
    arguments, first = None, True
    while (key := (yield from _next_key(source, first))) != "name":
        if key is None or (before_name is not None and key not in before_name):
            raise Malformed
        if key in _ARGUMENTS and arguments is not None:
            raise Malformed
        value = yield from _value(source)
        if key in _ARGUMENTS:
            arguments = _object_text(value)
        first = False
    return Head(require_name((yield from _string(source))), arguments)


def call_rest(source: Source, head: Head) -> Reading[None]:
    """Begins the call and reads what follows its name. A call without arguments has an empty object of them."""
    yield Begin(head.name)
    has_arguments = head.arguments is not None
    if head.arguments is not None:
        yield Fragment(head.arguments)
    while (key := (yield from _next_key(source, False))) is not None:
        if key == "name" or (key in _ARGUMENTS and has_arguments):
            raise Malformed
        if key in _ARGUMENTS:
            yield from arguments_value(source)
            has_arguments = True
        else:
            yield from _value(source)
    if not has_arguments:
        yield Fragment("{}")


def call_array(source: Source) -> Reading[None]:
    """A list of call objects; each call ends with its object."""
    yield from literal(source, "[")
    while True:
        yield from space(source)
        yield from call_object(source)
        yield End()
        yield from space(source)
        follows = yield from peek(source, (",", "]"))
        if follows is None:
            raise Malformed
        source.take(1)
        if follows == "]":
            return


def arguments_value(source: Source) -> Reading[None]:
    """The arguments: an object, passed on as it arrives; or a string that holds one, or null."""
    opener = yield from peek(source, ("{", '"', "null"))
    if opener == "{":
        yield from _passed_on(source)
    elif opener is not None:
        yield Fragment(_object_text((yield from _value(source))))
    else:
        raise Malformed


def _passed_on(source: Source) -> Reading[None]:
    scanner = JsonScanner()
    while not scanner.done:
        text = yield from _scan(source, scanner)
        if text:
            yield Fragment(text)


def _value(source: Source) -> Reading[str]:
    """The text of one JSON value of any kind."""
    scanner, parts = JsonScanner(), []
    while not scanner.done:
        parts.append((yield from _scan(source, scanner)))
    return "".join(parts)


def _scan(source: Source, scanner: JsonScanner) -> Reading[str]:
    """The next piece of a value. Raises Malformed where it goes wrong, once all before that place was passed on."""
    if scanner.failed:
        raise Malformed
    if not source.rest:
        yield from more(source)
    scanned = scanner.push(source.rest)
    source.take(scanned.length)
    return scanned.text


def _string(source: Source) -> Reading[str]:
    if not (yield from peek(source, ('"',))):
        raise Malformed
    value = json.loads((yield from _value(source)))
    assert isinstance(value, str)
    return value


def _next_key(source: Source, first: bool) -> Reading[str | None]:
    """The next key of an object whose brace was read, with its colon; None behind the last, with the brace."""
    yield from space(source)
    if (yield from peek(source, ("}",))):
        source.take(1)
        return None
    if not first:
        yield from literal(source, ",")
        yield from space(source)
    key = yield from _string(source)
    yield from space(source)
    yield from literal(source, ":")
    yield from space(source)
    return key


def _object_text(value: str) -> str:
    """Arguments that came as a whole: an object, a string that holds one, or null. Raises Malformed for others."""
    if value == "null":
        return "{}"
    text = json.loads(value).strip() if value.startswith('"') else value
    scanner = JsonScanner()
    scanned = scanner.push(text)
    if not text.startswith("{") or not scanner.done or scanned.length < len(text):
        raise Malformed
    return scanned.text
