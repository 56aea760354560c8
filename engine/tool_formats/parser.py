"""A grammar and the text as it arrives → events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .events import (
    CallArguments,
    CallDropped,
    CallEnd,
    CallStart,
    Event,
    Reasoning,
    Text,
    ToolCallParser,
    new_call_id,
)
from .grammar import Back, Begin, End, Fragment, Piece, Reading, Source

# Characters that a grammar sees at a time: each of its steps copies the unread rest.
_PORTION = 4096


class GrammarParser:
    """Runs a grammar over a reply: numbers its calls, and settles the white space around them.

    White space before the first call, between calls and behind the last belongs to the format when nothing else
    stands there; otherwise it is text, to the character.
    """

    def __init__(
        self, grammar: Callable[[Source], Reading[None]], new_id: Callable[[], str] = new_call_id
    ) -> None:
        self._source = Source()
        self._pieces = grammar(self._source)
        self._new_id = new_id
        self._index = -1
        self._open = False
        self._brace = ""
        self._blank = ""
        self._between = True

    @property
    def is_between(self) -> bool:
        """Whether nothing but white space was read since the reply began, or since the end of its last call."""
        return self._between and not self._open and not self._source.unsettled.strip()

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        for at in range(0, len(text), _PORTION):
            self._source.append(text[at : at + _PORTION])
            events += self._events()
        return events

    def finish(self) -> list[Event]:
        self._source.end()
        events = list(self._events())
        # Behind a call, white space alone is no answer.
        if self._blank and self._index < 0:
            events.append(Text(self._blank))
        return events

    def _events(self) -> Iterator[Event]:
        for piece in self._pieces:
            if piece is None:
                return
            yield from self._settle(piece)

    def _settle(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Text(text):
                self._source.mark()
                yield from self._said(text)
            case Reasoning():
                self._source.mark()
                yield piece
            case Begin(name):
                self._index += 1
                self._open = True
                yield CallStart(self._index, self._new_id(), name)
            case Fragment(text):
                yield from self._argued(text)
            case End():
                yield from self._ended()
            case Back(text):
                yield from self._dropped(text)

    def _said(self, text: str) -> Iterator[Event]:
        text = self._blank + text
        if not text.strip() and self._between:
            self._blank = text
            return
        self._blank, self._between = "", False
        if text:
            yield Text(text)

    def _argued(self, text: str) -> Iterator[Event]:
        certain, self._brace = (self._brace + text)[:-1], (self._brace + text)[-1:]
        if certain:
            yield CallArguments(self._index, certain)

    def _ended(self) -> Iterator[Event]:
        self._source.mark()
        yield CallArguments(self._index, self._brace)
        yield CallEnd(self._index)
        self._brace, self._blank, self._open, self._between = "", "", False, True

    def _dropped(self, text: str) -> Iterator[Event]:
        if self._open:
            yield CallDropped(self._index)
        self._brace, self._open = "", False
        yield from self._said(text)


class WholeCalls:
    """Passes on only calls that are complete, each at its end, and numbers them anew: for readers that can't take
    back a call that they saw begin."""

    def __init__(self, parser: ToolCallParser) -> None:
        self._parser = parser
        self._held: list[CallStart | CallArguments] = []
        self._count = 0

    def feed(self, text: str) -> list[Event]:
        return self._whole(self._parser.feed(text))

    def finish(self) -> list[Event]:
        return self._whole(self._parser.finish())

    def _whole(self, events: list[Event]) -> list[Event]:
        whole: list[Event] = []
        for event in events:
            match event:
                case CallStart() | CallArguments():
                    self._held.append(event)
                case CallDropped():
                    self._held.clear()
                case CallEnd():
                    whole += self._call()
                case _:
                    whole.append(event)
        return whole

    def _call(self) -> list[Event]:
        start, *rest = self._held
        assert isinstance(start, CallStart)
        arguments = "".join(event.fragment for event in rest if isinstance(event, CallArguments))
        index, self._count = self._count, self._count + 1
        self._held.clear()
        return [CallStart(index, start.id, start.name), CallArguments(index, arguments), CallEnd(index)]
