"""What the grammars are made of: generators that read a `Source` and pause where its text ends for now.

A grammar yields pieces, and None when it needs more text; what it returns is for the grammar that called it with
`yield from`. So every format reads as straight code, though its text comes in pieces of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .events import Reasoning, Text

NAME_LIMIT = 256  # characters of the name of a tool or of an argument
_NOT_IN_NAMES = frozenset("<>{}[]()\"'`,; ")


class Malformed(Exception):
    """The text breaks off or goes against the grammar within a call."""


class NotACall(Malformed):
    """What looked like a marker is plain text, and nothing of a call followed it."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A call of this tool begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """The next piece of the open call's arguments, as JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The open call is complete."""


@dataclass(frozen=True, slots=True)
class Back:
    """Text that was read as part of a call and is none."""

    text: str


Piece = Text | Reasoning | Begin | Fragment | End | Back
T = TypeVar("T")
Reading = Generator[Piece | None, None, T]


class Source:
    """The text of a reply that was not read yet, and what was read since the last mark."""

    def __init__(self) -> None:
        self.rest = ""
        self.ended = False
        self._taken: list[str] = []

    @property
    def unsettled(self) -> str:
        """What was read since the last mark, and what was not read yet."""
        return "".join(self._taken) + self.rest

    def append(self, text: str) -> None:
        self.rest += text

    def end(self) -> None:
        self.ended = True

    def take(self, length: int) -> str:
        """Reads that many characters."""
        taken, self.rest = self.rest[:length], self.rest[length:]
        self._taken.append(taken)
        return taken

    def mark(self) -> None:
        """Forgets what was read so far."""
        self._taken.clear()

    def since_mark(self) -> str:
        """All that was read since the mark, which moves to here."""
        text = "".join(self._taken)
        self._taken.clear()
        return text


def more(source: Source) -> Reading[None]:
    """Waits for text. Raises Malformed at the end of the reply."""
    if source.ended:
        raise Malformed
    yield None


def peek(source: Source, options: Sequence[str]) -> Reading[str | None]:
    """Which of the options comes next, unread; None for none. No option may be the beginning of another."""
    while True:
        for option in options:
            if source.rest.startswith(option):
                return option
        if source.ended or not any(option.startswith(source.rest) for option in options):
            return None
        yield None


def optional(source: Source, text: str) -> Reading[bool]:
    """Reads `text` if it comes next; whether it did."""
    found = yield from peek(source, (text,))
    if found:
        source.take(len(text))
    return found is not None


def literal(source: Source, text: str) -> Reading[None]:
    """Reads exactly `text`. Raises Malformed when something else comes."""
    if not (yield from optional(source, text)):
        raise Malformed


def space(source: Source) -> Reading[None]:
    """Reads white space, maybe none."""
    while True:
        source.take(len(source.rest) - len(source.rest.lstrip()))
        if source.rest or source.ended:
            return
        yield None


def stream_until(source: Source, ends: Sequence[str], piece: Callable[[str], Piece]) -> Reading[str | None]:
    """Passes text on, as pieces, up to the first of `ends`, which stays unread and is returned; None when the reply
    ends before. Held back is only what may be the beginning of one of `ends`."""
    while True:
        at, found = _first(source.rest, ends)
        possible = len(source.rest) - (0 if source.ended else _possible_beginning(source.rest, ends))
        free = min(at, possible)
        if free:
            yield piece(source.take(free))
        if found and at <= possible:
            return found
        if source.ended and not source.rest:
            return None
        if not source.ended:
            yield None


def read_until(source: Source, ends: Sequence[str]) -> Reading[str]:
    """The text up to the first of `ends`, which stays unread. Raises Malformed when none comes."""
    parts: list[str] = []
    while True:
        at, found = _first(source.rest, ends)
        possible = len(source.rest) - _possible_beginning(source.rest, ends)
        parts.append(source.take(min(at, possible)))
        if found and at <= possible:
            return "".join(parts)
        yield from more(source)


def read_short(source: Source, ends: Sequence[str]) -> Reading[str]:
    """The text up to the first of `ends`, which stays unread. Raises Malformed, with nothing read, when it is longer
    than NAME_LIMIT or no end comes."""
    longest = max(map(len, ends))
    while True:
        at, found = _first(source.rest, ends)
        # Without an end, the last characters may still be the beginning of one.
        if at > NAME_LIMIT + (0 if found else longest):
            raise Malformed
        if found:
            return source.take(at)
        yield from more(source)


def read_name(source: Source, ends: Sequence[str]) -> Reading[str]:
    """The name of a tool up to the first of `ends`, without white space around it. Raises Malformed."""
    return require_name((yield from read_short(source, ends)).strip())


def require_name(name: str) -> str:
    """The name itself. Raises Malformed for a text that can't be the name of a tool."""
    if not 0 < len(name) <= NAME_LIMIT or not name.isprintable() or not _NOT_IN_NAMES.isdisjoint(name):
        raise Malformed
    return name


def marked_reply(
    source: Source, starts: Sequence[str], end: str | None, block: Callable[[Source], Reading[None]]
) -> Reading[None]:
    """Text, and blocks that begin with one of `starts`; `block` reads one from its marker on.

    A broken block comes back as text, up to and including `end`: what stands in it is never taken for a call, since
    it may be the contents of a file. Without an `end` that is all the rest of the reply.
    """
    while (yield from stream_until(source, starts, Text)) is not None:
        source.mark()
        try:
            yield from block(source)
        except NotACall:
            yield Back(source.since_mark())
        except Malformed:
            yield Back(source.since_mark())
            yield from pass_on(source, end)


def pass_on(source: Source, end: str | None) -> Reading[None]:
    """The rest of a broken block as text."""
    found = yield from stream_until(source, (end,) if end else (), Text)
    if found:
        yield Text(source.take(len(found)))


def _first(text: str, ends: Sequence[str]) -> tuple[int, str | None]:
    """Where the first of `ends` stands, and which it is; the end of the text and None without one."""
    places = [(at, end) for end in ends if (at := text.find(end)) >= 0]
    return min(places) if places else (len(text), None)


def _possible_beginning(text: str, ends: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `ends`."""
    longest = min(len(text), max(map(len, ends), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(end.startswith(text[-length:]) for end in ends):
            return length
    return 0
