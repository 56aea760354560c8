"""Mistral, both generations.

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}, …]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]…

Between name and arguments some models write `[CALL_ID]` and an id, and some leave `[ARGS]` out. Ids are dropped: a
client needs them unique over the conversation, which a model can't promise.
"""

from __future__ import annotations

from .call_objects import arguments_value, call_array
from .grammar import (
    Begin,
    End,
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
    space,
)
from .tools import Tools

_CALLS = "[TOOL_CALLS]"
_ARGUMENTS = "[ARGS]"
_ID = "[CALL_ID]"


def mistral_reply(source: Source, tools: Tools) -> Reading[None]:
    """Text, then calls. Nothing marks the end of a call but the end of its JSON."""
    yield from marked_reply(source, (_CALLS,), None, _block)


def _block(source: Source) -> Reading[None]:
    yield from literal(source, _CALLS)
    yield from space(source)
    if (yield from peek(source, ("[",))):
        yield from call_array(source)
        return
    yield Begin((yield from _name(source)))
    if (yield from optional(source, _ID)):
        yield from read_short(source, (_ARGUMENTS, "{"))
    yield from optional(source, _ARGUMENTS)
    yield from space(source)
    yield from arguments_value(source)
    yield End()


def _name(source: Source) -> Reading[str]:
    try:
        return (yield from read_name(source, (_ARGUMENTS, _ID, "{")))
    except Malformed as error:
        raise NotACall from error
