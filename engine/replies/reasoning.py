"""Reasoning apart from the answer, for models that write both into one text.

    <think>
    The user wants …
    </think>

    It rains.

The markers and the line breaks around them belong to neither part: templates write them anew. A model reasons before
it answers, so a marker behind the first word of an answer is plain text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..tool_formats.events import Event, Reasoning, Text, ToolCallParser, new_call_id
from ..tool_formats.formats import ToolFormat
from ..tool_formats.grammar import Reading, Source, optional, space, stream_until
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

    def __init__(self, form: ReasoningFormat, opened: bool) -> None:
        """`opened`: the prompt ends within reasoning, so the reply begins there."""
        self._source = Source()
        self._pieces = _split(self._source, form, opened)
        self._breaks = ""

    def feed(self, text: str) -> list[Event]:
        """What is certain with this piece."""
        self._source.append(text)
        return self._events()

    def finish(self) -> list[Event]:
        """What was held back, at the end of the reply."""
        self._source.end()
        return self._events()

    def _events(self) -> list[Event]:
        events: list[Event] = []
        for piece in self._pieces:
            if piece is None:
                break
            self._source.mark()
            match piece:
                case Text(text):
                    events += [piece] if text else []
                case Reasoning(text):
                    events += self._without_last_breaks(text)
        return events

    def _without_last_breaks(self, text: str) -> list[Event]:
        """Reasoning but for the line breaks at its end, which wait for more of it."""
        text = self._breaks + text
        shown = text.rstrip("\n")
        self._breaks = text[len(shown) :]
        return [Reasoning(shown)] if shown else []


def _split(source: Source, form: ReasoningFormat, opened: bool) -> Reading[None]:
    source.mark()
    yield from space(source)
    blank = source.since_mark()
    if (yield from optional(source, form.start)):
        yield from _line_breaks(source)
    elif opened:
        yield Reasoning(blank.lstrip("\n"))
    else:
        yield Text(blank)
        yield from stream_until(source, (), Text)
        return
    if (yield from stream_until(source, (form.end,), Reasoning)) is not None:
        source.take(len(form.end))
    yield from _line_breaks(source)
    yield from stream_until(source, (), Text)


def _line_breaks(source: Source) -> Reading[None]:
    while (yield from optional(source, "\n")):
        pass


class ReplyParser:
    """Splits off the reasoning, and reads the calls in what is left."""

    def __init__(self, splitter: ReasoningSplitter | None, calls: ToolCallParser | None) -> None:
        self._splitter = splitter
        self._calls = calls

    def feed(self, text: str) -> list[Event]:
        split = self._splitter.feed(text) if self._splitter else [Text(text)]
        return [event for part in split for event in self._called(part)]

    def finish(self) -> list[Event]:
        split = self._splitter.finish() if self._splitter else []
        events = [event for part in split for event in self._called(part)]
        return [*events, *(self._calls.finish() if self._calls else [])]

    def _called(self, part: Event) -> list[Event]:
        if isinstance(part, Text) and self._calls:
            return self._calls.feed(part.text)
        return [part]


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
    return ReplyParser(ReasoningSplitter(reasoning, opened) if reasoning else None, calls)
