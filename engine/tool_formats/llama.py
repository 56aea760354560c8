"""Llama 3: a bare call object in place of an answer, maybe behind `<|python_tag|>`.

    {"name": "get_weather", "parameters": {"city": "Oslo"}}

Nothing but its first keys tells a call from an answer in JSON. So an object counts as a call only at the beginning of
a line, in a code fence or behind the tag; with no key but `type` and `id` before `name`; and only if that is the name
of a tool.
"""

from __future__ import annotations

from .call_objects import call_head, call_rest
from .events import Text
from .grammar import (
    Back,
    End,
    Malformed,
    NotACall,
    Reading,
    Source,
    optional,
    pass_on,
    peek,
    space,
    stream_until,
)
from .tools import Tools

_TAG = "<|python_tag|>"
_FENCE = "```"
_OPENERS = ("{", _TAG, f"{_FENCE}json\n", f"{_FENCE}tool_call\n")
_BEFORE_NAME = frozenset({"type", "id"})


def llama3_reply(source: Source, tools: Tools) -> Reading[None]:
    """Lines of text, and calls at the beginning of a line or behind the tag."""
    while source.rest or not source.ended:
        if (yield from peek(source, _OPENERS)) is not None:
            yield from _attempt(source, tools)
        # The rest of the line; the tag may stand in its midst.
        if (yield from stream_until(source, ("\n", _TAG), Text)) == "\n":
            yield Text(source.take(1))


def _attempt(source: Source, tools: Tools) -> Reading[None]:
    source.mark()
    try:
        yield from _block(source, tools)
    except NotACall:
        yield Back(source.since_mark())
    except Malformed:
        yield Back(source.since_mark())
        yield from pass_on(source, None)


def _block(source: Source, tools: Tools) -> Reading[None]:
    """One call or several, parted by semicolons or white space; in a fence, up to its end."""
    fenced = yield from _opening(source)
    yield from _bare_call(source, tools)
    yield End()
    while (yield from _another(source)):
        yield from _bare_call(source, tools)
        yield End()
    if fenced:
        yield from optional(source, _FENCE)


def _opening(source: Source) -> Reading[bool]:
    """Reads what stands before the object; whether that is a fence."""
    opener = yield from peek(source, _OPENERS)
    if opener not in (None, "{"):
        source.take(len(opener or ""))
    yield from space(source)
    return opener is not None and opener.startswith(_FENCE)


def _another(source: Source) -> Reading[bool]:
    """Reads a semicolon and the white space around it, if another object follows; otherwise that stays text."""
    yield from space(source)
    yield from optional(source, ";")
    yield from space(source)
    if (yield from peek(source, ("{",))) is None:
        yield Text(source.since_mark())
        return False
    return True


def _bare_call(source: Source, tools: Tools) -> Reading[None]:
    try:
        head = yield from call_head(source, _BEFORE_NAME)
    except Malformed as error:
        raise NotACall from error
    if head.name not in tools:
        raise NotACall
    yield from call_rest(source, head)
