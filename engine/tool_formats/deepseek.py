"""DeepSeek: V3 and R1 fence the arguments, V3.1 does not.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
```json
{"city": "Oslo"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

from .call_objects import arguments_value
from .events import Text
from .grammar import (
    Begin,
    End,
    Reading,
    Source,
    literal,
    marked_reply,
    optional,
    peek,
    read_name,
    space,
)
from .tools import Tools

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


def deepseek_reply(source: Source, tools: Tools) -> Reading[None]:
    """Text, then one block of calls; R1 sometimes leaves out the marker of the block."""
    yield from marked_reply(source, (CALLS_BEGIN, CALL_BEGIN), CALLS_END, _block)


def _block(source: Source) -> Reading[None]:
    yield from optional(source, CALLS_BEGIN)
    following: str | None = CALL_BEGIN
    while following == CALL_BEGIN:
        yield from space(source)
        yield from _call(source)
        yield from space(source)
        following = yield from peek(source, (CALL_BEGIN, CALLS_END))
    if following is None:
        yield Text(source.since_mark())
    else:
        source.take(len(CALLS_END))


def _call(source: Source) -> Reading[None]:
    yield from literal(source, CALL_BEGIN)
    name = yield from read_name(source, (SEPARATOR,))
    yield from literal(source, SEPARATOR)
    if name == "function" and not (yield from peek(source, ("{",))):
        # It was the type of the call.
        name = yield from read_name(source, ("\n",))
    yield Begin(name)
    yield from space(source)
    yield from optional(source, f"{_FENCE}json")
    yield from space(source)
    yield from arguments_value(source)
    yield from space(source)
    yield from optional(source, _FENCE)
    yield from space(source)
    yield from literal(source, CALL_END)
    yield End()
