"""Calls in `<tool_call>` tags: JSON (Hermes, Qwen), elements (Qwen3-Coder), keys and values (GLM).

    <tool_call>                          <tool_call>                      <tool_call>get_weather
    {"name": "get_weather",              <function=get_weather>           <arg_key>city</arg_key>
     "arguments": {"city": "Oslo"}}      <parameter=city>                 <arg_value>Oslo</arg_value>
    </tool_call>                         Oslo                             </tool_call>
                                         </parameter>
                                         </function>
                                         </tool_call>

The first two are told apart by how they begin, so a model that mixes them is understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .call_objects import call_object
from .events import Text
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
from .typed_values import ObjectWriter, typed_value

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_FUNCTION = "<function="
# Templates put a line break between the text of a turn and its first call; so it is no part of the text.
_STARTS = (f"\n{_OPEN}", _OPEN)
_FUNCTION_STARTS = (f"\n{_FUNCTION}", _FUNCTION)


def hermes_reply(source: Source, tools: Tools) -> Reading[None]:
    """JSON or elements, in tags."""
    yield from marked_reply(source, _STARTS, _CLOSE, partial(_tagged, tools=tools))


def qwen3_coder_reply(source: Source, tools: Tools) -> Reading[None]:
    """The same, and elements whose opening tag the model forgot, as Qwen3-Coder often does."""
    yield from marked_reply(source, (*_STARTS, *_FUNCTION_STARTS), _CLOSE, partial(_tagged, tools=tools))


def glm_reply(source: Source, tools: Tools) -> Reading[None]:
    """Keys and values, in tags."""
    yield from marked_reply(source, _STARTS, _CLOSE, partial(_glm_block, tools=tools))


def _tagged(source: Source, tools: Tools) -> Reading[None]:
    yield from optional(source, "\n")
    tagged = yield from optional(source, _OPEN)
    yield from space(source)
    opener = yield from peek(source, ("{", _FUNCTION))
    if opener is None:
        raise NotACall
    if opener == "{":
        yield from call_object(source)
    else:
        yield from _function(source, tools, tagged)
    if tagged:
        yield from space(source)
        yield from literal(source, _CLOSE)
    yield End()
    if not tagged:
        yield from _stray_close(source)


def _stray_close(source: Source) -> Reading[None]:
    """The closing tag of a call whose opening tag was forgotten; white space is text when none comes."""
    yield from space(source)
    if not (yield from optional(source, _CLOSE)):
        yield Text(source.since_mark())


def _function(source: Source, tools: Tools, tagged: bool) -> Reading[None]:
    """The element of a call. Without tags around it, its name has to be that of a tool."""
    yield from literal(source, _FUNCTION)
    name = yield from _name(source, (">",))
    if not tagged and name not in tools:
        raise NotACall
    source.take(1)
    yield Begin(name)
    arguments = ObjectWriter()
    while (yield from _another(source, "<parameter=", "</function>")):
        key = yield from _key(source, ">")
        yield arguments.key(key)
        yield from optional(source, "\n")
        yield from typed_value(source, ("\n</parameter>", "</parameter>"), tools.types(name, key))
        yield from optional(source, "\n")
        yield from literal(source, "</parameter>")
    yield arguments.close()


def _glm_block(source: Source, tools: Tools) -> Reading[None]:
    yield from optional(source, "\n")
    yield from literal(source, _OPEN)
    yield from space(source)
    name = yield from _name(source, ("\n", "<"))
    yield Begin(name)
    arguments = ObjectWriter()
    while (yield from _another(source, "<arg_key>", _CLOSE)):
        key = yield from _key(source, "</arg_key>")
        yield from space(source)
        # GLM sometimes leaves this tag out, and nothing else.
        yield from optional(source, "<arg_value>")
        yield arguments.key(key)
        yield from typed_value(source, ("</arg_value>",), tools.types(name, key))
        yield from literal(source, "</arg_value>")
    yield arguments.close()
    yield End()


def _name(source: Source, ends: Sequence[str]) -> Reading[str]:
    try:
        return (yield from read_name(source, ends))
    except Malformed as error:
        raise NotACall from error


def _key(source: Source, end: str) -> Reading[str]:
    """The name of an argument, with the end behind it. Raises Malformed where the end is that of another tag."""
    key = yield from read_short(source, (end,))
    if not key or "<" in key or "\n" in key:
        raise Malformed
    source.take(len(end))
    return key


def _another(source: Source, start: str, end: str) -> Reading[bool]:
    """Reads the start of another argument, or the end of all; whether it was the start. Raises Malformed."""
    yield from space(source)
    found = yield from peek(source, (start, end))
    if found is None:
        raise Malformed
    source.take(len(found))
    return found == start
