"""Reasoning apart from the answer, for models that write both into one text.

    <think>
    The user wants …
    </think>

    It rains.

The markers and the line breaks around them belong to neither part: templates write them anew. A model reasons before
it answers, so a marker behind the first word of an answer is plain text. Blocks that follow one another, or a call, are
one reasoning, with a line break between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..tool_formats.events import Event, Reasoning, Text, ToolCallParser, new_call_id
from ..tool_formats.formats import ToolFormat
from ..tool_formats.grammar import Reading, Source, optional, space, stream_until
from ..tool_formats.parser import GrammarParser
from ..tool_formats.tools import Tools


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning. `tokens` are those of its special tokens that have to reach the splitter as
    text, while a detokenizer leaves control tokens out."""

    name: str
    start: str
    end: str
    tokens: frozenset[str]

    def is_opened_by(self, prompt: str) -> bool:
        """Whether the prompt ends within reasoning, because the template has written the start."""
        return prompt.rstrip().endswith(self.start)


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>", frozenset({"<think>", "</think>"})),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", frozenset({"[THINK]", "[/THINK]"})),
    ReasoningFormat("gemma4", "<|channel>thought", "<channel|>", frozenset({"<|channel>", "<channel|>"})),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>", frozenset({"<seed:think>", "</seed:think>"})),
)


def detect_reasoning(template: str) -> ReasoningFormat | None:
    """The format of a model whose chat template knows the end of reasoning; None for a model that does not think.

    Harmony is not among these: its parser says itself what is reasoning.
    """
    return next((f for f in REASONING_FORMATS if f.end in template), None)


class ReasoningSplitter:
    """Splits one reply into Reasoning and Text. Reasoning that is never closed stays reasoning to the end."""

    def __init__(
        self, form: ReasoningFormat, opened: bool, is_answering: Callable[[], bool] | None = None
    ) -> None:
        """`opened`: the prompt ends within reasoning, so the reply begins there.

        `is_answering` says of the text that was passed on so far whether it ends in an answer, or in a call that is not
        complete; without it, any word begins the answer.
        """
        self._form = form
        self._opened = opened
        self._is_answering = is_answering
        self._source = Source()
        self._pieces = self._split()
        self._has_thought = False
        self._breaks = ""

    def feed(self, text: str) -> Iterator[Event]:
        """What is certain with this piece. Each event has to be dealt with before the next one is asked for."""
        self._source.append(text)
        return self._events()

    def finish(self) -> Iterator[Event]:
        """What was held back, at the end of the reply."""
        self._source.end()
        return self._events()

    def _events(self) -> Iterator[Event]:
        for piece in self._pieces:
            if piece is None:
                return
            self._source.mark()
            match piece:
                case Text(text) if text:
                    yield piece
                case Reasoning(text):
                    yield from self._without_last_breaks(text)

    def _without_last_breaks(self, text: str) -> Iterator[Event]:
        """Reasoning but for the line breaks at its end, which wait for more of it."""
        text = self._breaks + text
        shown = text.rstrip("\n")
        self._breaks = text[len(shown) :]
        if shown:
            self._has_thought = True
            yield Reasoning(shown)

    def _split(self) -> Reading[None]:
        source, start, opened = self._source, self._form.start, self._opened
        while True:
            yield from space(source)
            blank = source.since_mark()
            if (yield from optional(source, start)):
                yield from _line_breaks(source)
            elif opened:
                yield Reasoning(blank.lstrip("\n"))
            else:
                yield Text(blank)
                break
            opened = False
            yield from self._block()
        # Without calls the first word begins the answer, and no marker has to be looked for any more.
        starts = (start,) if self._is_answering else ()
        while (yield from stream_until(source, starts, Text)) is not None:
            marker = source.take(len(start))
            if self._is_answering and self._is_answering():
                yield Text(marker)
            else:
                yield from _line_breaks(source)
                yield from self._block()

    def _block(self) -> Reading[None]:
        """A block behind its start, and the line breaks behind it."""
        if (yield from stream_until(self._source, (self._form.end,), Reasoning)) is not None:
            self._source.take(len(self._form.end))
        self._breaks = "\n" if self._has_thought else ""
        yield from _line_breaks(self._source)
        self._source.mark()


def _line_breaks(source: Source) -> Reading[None]:
    while (yield from optional(source, "\n")):
        pass


class ReplyParser:
    """Splits off the reasoning, and reads the calls in what is left."""

    def __init__(self, reasoning: ReasoningFormat | None, opened: bool, calls: GrammarParser | None) -> None:
        is_answering = self._is_answering if calls else None
        self._splitter = ReasoningSplitter(reasoning, opened, is_answering) if reasoning else None
        self._calls = calls
        self._has_answered = False

    def feed(self, text: str) -> list[Event]:
        split = self._splitter.feed(text) if self._splitter else [Text(text)]
        return [event for part in split for event in self._called(part)]

    def finish(self) -> list[Event]:
        split = self._splitter.finish() if self._splitter else []
        events = [event for part in split for event in self._called(part)]
        return [*events, *(self._calls.finish() if self._calls else [])]

    def _called(self, part: Event) -> list[Event]:
        if not isinstance(part, Text) or self._calls is None:
            return [part]
        events = self._calls.feed(part.text)
        self._has_answered |= any(isinstance(event, Text) and not event.text.isspace() for event in events)
        return events

    def _is_answering(self) -> bool:
        return self._has_answered or not (self._calls and self._calls.is_between)


def reply_parser(
    tool_format: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    tools: Tools | None,
    opened: bool = False,
    new_id: Callable[[], str] = new_call_id,
) -> ToolCallParser:
    """The parser for one reply of a model. `tools` None: the request has none, so nothing in the reply is a call.

    `opened`: the prompt ends within reasoning.
    """
    if tool_format is not None and tool_format.has_reasoning:
        return tool_format.parser(tools or Tools({}), new_id)
    calls = tool_format.parser(tools, new_id) if tool_format and tools is not None else None
    return ReplyParser(reasoning, opened, calls)
