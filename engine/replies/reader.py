"""The tokens of one reply → its text, reasoning and tool calls, as far as they are certain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from ..messages.reply import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ..text.text_stream import TextStream
from ..tool_formats.events import CallArguments, CallEnd, CallStart, Event, Reasoning, Text, ToolCallParser


class Read(NamedTuple):
    """What became certain, and the stop string that ended the reply, if one did. With `is_enough` it has as many
    calls as the request allows, and ends here."""

    events: list[Event]
    stopped_by: str | None = None
    is_enough: bool = False


class ReplyReader:
    """Reads one reply. Without a `parser` all of it is text. With `one_call` it ends with its first call.

    Stop strings are looked for in all that the model writes: in reasoning and calls too.
    """

    def __init__(
        self, text: TextStream, parser: ToolCallParser | None = None, *, one_call: bool = False
    ) -> None:
        self._text = text
        self._parser = parser
        self._one_call = one_call
        self._is_over = False
        self.calls = 0

    def push(self, token: int) -> Read:
        """What became certain with this token; nothing may be pushed after a stop string or enough calls."""
        certain = self._text.push(token)
        events = self._parsed(certain.text)
        if certain.stopped_by is not None:
            events += self._rest()
        return self._counted(events, certain.stopped_by)

    def finish(self) -> Read:
        """What was still held back, at the end of a reply. It may complete a stop string."""
        if self._is_over:
            return Read([])
        certain = self._text.finish()
        return self._counted([*self._parsed(certain.text), *self._rest()], certain.stopped_by)

    def _parsed(self, text: str) -> list[Event]:
        if self._parser is not None:
            return self._parser.feed(text)
        return [Text(text)] if text else []

    def _rest(self) -> list[Event]:
        self._is_over = True
        return self._parser.finish() if self._parser is not None else []

    def _counted(self, events: list[Event], stopped_by: str | None) -> Read:
        ends = [at for at, event in enumerate(events, 1) if isinstance(event, CallEnd)]
        if ends and self._one_call:
            self.calls, self._is_over = 1, True
            return Read(events[: ends[0]], None, is_enough=True)
        self.calls += len(ends)
        return Read(events, stopped_by)


def deltas(request_id: str, events: Iterable[Event], tokens: int) -> Iterator[Delta]:
    """The events as messages; neighbours of one kind are joined. The first message counts the `tokens`."""
    for kind, group in groupby(events, type):
        for event in _joined(kind, group):
            delta = _delta(request_id, event, tokens)
            if delta is not None:
                yield delta
                tokens = 0


def _joined(kind: type[Event], group: Iterable[Event]) -> Iterable[Event]:
    if kind is Text:
        return [Text("".join(event.text for event in group if isinstance(event, Text)))]
    if kind is Reasoning:
        return [Reasoning("".join(event.text for event in group if isinstance(event, Reasoning)))]
    return group


def _delta(request_id: str, event: Event, tokens: int) -> Delta | None:
    match event:
        case Text(text):
            return TextDelta(request_id, text, tokens)
        case Reasoning(text):
            return ReasoningDelta(request_id, text, tokens)
        case CallStart(index, call_id, name):
            return ToolCallDelta(request_id, index, "", tokens, call_id, name)
        case CallArguments(index, fragment):
            return ToolCallDelta(request_id, index, fragment, tokens)
        case _:
            # The end of a call says nothing that a client has to be told.
            return None
