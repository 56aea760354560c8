"""Harmony, the format of gpt-oss (https://cookbook.openai.com/articles/openai-harmony): messages in channels.

    <|channel|>analysis<|message|>The user wants …<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It rains.<|return|>

The prompt ends with `<|start|>assistant`, so a reply begins behind it. `analysis` is reasoning, `final` and `commentary`
are text, and what is addressed to a tool is a call. The recipient may also stand before the channel.
"""

from __future__ import annotations

import re

from .call_objects import arguments_value
from .events import Reasoning, Text
from .grammar import (
    Back,
    Begin,
    End,
    Fragment,
    Malformed,
    Reading,
    Source,
    peek,
    require_name,
    space,
    stream_until,
)
from .tools import Tools

HEADER_LIMIT = 512  # characters, with the marker behind it

_MESSAGE = "<|message|>"
_STARTS = ("<|start|>", "<|channel|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT_FIRST = " to="
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."


def harmony_reply(source: Source, tools: Tools) -> Reading[None]:
    """One message after another; text outside of messages is text. Headers and markers never come out, but for a
    marker within the arguments of a broken call."""
    if (yield from peek(source, (_RECIPIENT_FIRST,))):
        yield from _message(source, tools)
    while source.rest or not source.ended:
        if (yield from peek(source, _STARTS)):
            yield from _message(source, tools)
        else:
            yield from stream_until(source, (*_STARTS, *_ENDS), Text)
            yield from _end(source)


def _message(source: Source, tools: Tools) -> Reading[None]:
    header = yield from _header(source)
    if header is None:
        return
    name = _tool(header, tools)
    source.mark()
    if name is not None:
        yield from _call(source, name)
    else:
        kind = Reasoning if _channel(header) == "analysis" else Text
        yield from stream_until(source, (*_STARTS, *_ENDS), kind)
    yield from _end(source)


def _header(source: Source) -> Reading[str | None]:
    """The text before the marker of a message, both read. Without that marker None: the header is dropped when the
    reply ends within, and otherwise the rest is text."""
    while (at := source.rest.find(_MESSAGE, 0, HEADER_LIMIT)) < 0 and len(source.rest) < HEADER_LIMIT:
        if source.ended:
            yield from _cut_header(source)
            return None
        yield None
    if at >= 0:
        header = source.take(at)
        source.take(len(_MESSAGE))
        return header
    yield from _no_header(source)
    return None


def _cut_header(source: Source) -> Reading[None]:
    """Drops the rest; what only looked like a recipient is text."""
    text = source.take(len(source.rest))
    if not any(start in text for start in _STARTS):
        yield Text(text)


def _no_header(source: Source) -> Reading[None]:
    """Reads the marker alone; what only looked like a recipient is text."""
    marker = next((start for start in _STARTS if source.rest.startswith(start)), None)
    if marker is None:
        yield Text(source.take(len(_RECIPIENT_FIRST)))
    else:
        source.take(len(marker))


def _channel(header: str) -> str | None:
    found = _CHANNEL.search(header)
    return found[1] if found else None


def _tool(header: str, tools: Tools) -> str | None:
    """The tool that a message is addressed to. None for a message to the user, for the tools that gpt-oss was trained
    with and the client did not offer, and when it offered none."""
    found = _RECIPIENT.search(header)
    if found is None or not tools:
        return None
    name = found[1].removeprefix(_FUNCTIONS)
    return name if name != found[1] or name in tools else None


def _call(source: Source, name: str) -> Reading[None]:
    try:
        yield from _arguments(source, name)
    except Malformed:
        yield Back(source.since_mark())
        yield from stream_until(source, (*_STARTS, *_ENDS), Text)


def _arguments(source: Source, name: str) -> Reading[None]:
    """A call whose header was read. The marker behind it ends the turn, so it may be missing at the end."""
    yield Begin(require_name(name))
    yield from space(source)
    if (yield from peek(source, _ENDS)):
        yield Fragment("{}")
    else:
        yield from arguments_value(source)
        yield from space(source)
    if (yield from peek(source, (*_ENDS, *_STARTS))) is None and source.rest:
        raise Malformed
    yield End()


def _end(source: Source) -> Reading[None]:
    found = yield from peek(source, _ENDS)
    if found:
        source.take(len(found))
