"""Gemma: FunctionGemma and Gemma 4 write calls in a notation of their own, Gemma 3 in Python.

    <start_function_call>call:get_weather{city:<escape>Oslo<escape>}<end_function_call>
    <|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>

    ```tool_code
    get_weather(city="Oslo")
    ```

In the notation keys are bare or quoted, and values are strings in quotes, numbers, words, lists and objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .grammar import (
    Begin,
    End,
    Fragment,
    Malformed,
    NotACall,
    Reading,
    Source,
    literal,
    marked_reply,
    optional,
    peek,
    read_name,
    read_short,
    read_until,
    space,
)
from .python_calls import read_calls
from .tools import Tools
from .typed_values import ObjectWriter, as_json, string_value

CODE = "```tool_code"
CODE_END = "\n```"
_DEPTH = 32  # lists and objects within each other
_SCALARS = frozenset({"integer", "number", "boolean", "null"})


@dataclass(frozen=True, slots=True)
class Notation:
    """The markers of a call, and the quote on both sides of a string."""

    start: str
    end: str
    quote: str


FUNCTION_GEMMA = Notation("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = Notation("<|tool_call>", "<tool_call|>", '<|"|>')


def gemma_reply(source: Source, tools: Tools, notation: Notation) -> Reading[None]:
    """Calls in the notation."""
    block = partial(_block, notation=notation)
    yield from marked_reply(source, (notation.start,), notation.end, block)


def tool_code_reply(source: Source, tools: Tools) -> Reading[None]:
    """Calls in Python, in a fence."""
    yield from marked_reply(source, (f"\n{CODE}", CODE), CODE_END, partial(_code_block, tools=tools))


def _block(source: Source, notation: Notation) -> Reading[None]:
    yield from literal(source, notation.start)
    yield from space(source)
    if not (yield from optional(source, "call:")):
        raise NotACall
    yield Begin((yield from read_name(source, ("{",))))
    yield from _object(source, notation.quote, _DEPTH)
    yield from space(source)
    yield from literal(source, notation.end)
    yield End()


def _object(source: Source, quote: str, depth: int) -> Reading[None]:
    yield from literal(source, "{")
    members = ObjectWriter(is_argument=depth < _DEPTH)
    first = True
    while (yield from _another(source, "}", first)):
        yield members.key((yield from _key(source, quote)))
        yield from _value(source, quote, depth - 1)
        first = False
    yield members.close()


def _list(source: Source, quote: str, depth: int) -> Reading[None]:
    yield from literal(source, "[")
    yield Fragment("[")
    first = True
    while (yield from _another(source, "]", first)):
        if not first:
            yield Fragment(", ")
        yield from _value(source, quote, depth - 1)
        first = False
    yield Fragment("]")


def _another(source: Source, end: str, first: bool) -> Reading[bool]:
    """Reads the comma before another member, or the end of all; whether another comes."""
    yield from space(source)
    if (yield from optional(source, end)):
        return False
    if not first:
        yield from literal(source, ",")
        yield from space(source)
    return True


def _key(source: Source, quote: str) -> Reading[str]:
    quoted = yield from optional(source, quote)
    key = yield from read_short(source, (quote if quoted else ":",))
    if quoted:
        yield from literal(source, quote)
        yield from space(source)
    yield from literal(source, ":")
    return key.strip()


def _value(source: Source, quote: str, depth: int) -> Reading[None]:
    if not depth:
        raise Malformed
    yield from space(source)
    opener = yield from peek(source, (quote, "{", "["))
    if opener == quote:
        yield from literal(source, quote)
        yield from string_value(source, (quote,))
        yield from literal(source, quote)
    elif opener == "{":
        yield from _object(source, quote, depth)
    elif opener == "[":
        yield from _list(source, quote, depth)
    else:
        bare = (yield from read_until(source, (",", "}", "]"))).strip()
        if not bare:
            raise Malformed
        yield Fragment(as_json(bare, _SCALARS))


def _code_block(source: Source, tools: Tools) -> Reading[None]:
    yield from optional(source, "\n")
    yield from literal(source, CODE)
    code = yield from read_until(source, (CODE_END,))
    calls = read_calls(code, tools)
    yield from literal(source, CODE_END)
    for call in calls:
        yield Begin(call.name)
        yield Fragment(call.arguments)
        yield End()
