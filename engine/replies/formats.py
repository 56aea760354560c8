"""How a model writes tool calls and marks its reasoning, and the reader of a reply that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol import GenerateRequest
from ..text.text_stream import TextStream
from ..text.tokenise import Tokenizer
from ..tool_formats.events import ToolCallParser
from ..tool_formats.formats import ToolFormat, by_name, detect
from ..tool_formats.parser import WholeCalls
from ..tool_formats.tools import read_tools
from .reader import ReplyReader
from .reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning, reply_parser

AUTO, NONE = "auto", "none"
# Llama 3's templates refuse a history in which a turn has two calls, with these words.
_ONE_CALL = "only supports single tool-calls"
# Longer than any marker of reasoning, which may be spelled in letters.
_LAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class ReplyFormats:
    """The formats of a model; None for what it was not taught. With `one_call` its template takes one in a turn."""

    calls: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    one_call: bool = False

    @property
    def tool_format(self) -> str | None:
        """The name of the format of calls."""
        return self.calls.name if self.calls else None

    @property
    def reasoning_format(self) -> str | None:
        """The name of the format of reasoning, which may be that of calls."""
        if self.calls is not None and self.calls.has_reasoning:
            return self.calls.name
        return self.reasoning.name if self.reasoning else None

    def reader(self, tokenizer: Tokenizer, request: GenerateRequest, prompt: Sequence[int]) -> ReplyReader:
        """The reader of the reply to a request whose prompt has these tokens.

        Replies to a bare prompt are text alone, and so is what looks like a call where no tools were offered.
        """
        has_tools = bool(request.messages) and request.tools_json is not None
        parser = self._parser(tokenizer, request, prompt) if request.messages else None
        shown = self._shown(tokenizer, has_tools) if parser else frozenset()
        text = TextStream(tokenizer, request.stop, shown)
        return ReplyReader(text, parser, one_call=self.one_call or not request.parallel_tool_calls)

    def _parser(
        self, tokenizer: Tokenizer, request: GenerateRequest, prompt: Sequence[int]
    ) -> ToolCallParser | None:
        tools = None if request.tools_json is None else read_tools(request.tools_json)
        calls = self.calls if tools is not None or (self.calls and self.calls.has_reasoning) else None
        if calls is None and self.reasoning is None:
            return None
        opened = self.opens_reasoning(tokenizer, prompt)
        return WholeCalls(reply_parser(calls, self.reasoning, tools, opened))

    def opens_reasoning(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends within reasoning, so that the reply begins there."""
        end = b"".join(map(tokenizer.spelling, prompt[-_LAST_TOKENS:])).decode("utf-8", "replace")
        return self.reasoning is not None and self.reasoning.is_opened_by(end)

    def _shown(self, tokenizer: Tokenizer, has_tools: bool) -> frozenset[int]:
        """The control tokens that the parser has to see as text."""
        texts: set[str] = set(self.reasoning.tokens) if self.reasoning else set()
        if self.calls and (has_tools or self.calls.has_reasoning):
            texts |= self.calls.tokens
        ids = (tokenizer.id_of(text) for text in texts)
        return frozenset(token for token in ids if token is not None)


def find_formats(
    template: str, tokenizer: Tokenizer, tool_format: str = AUTO, reasoning_format: str = AUTO
) -> ReplyFormats:
    """The formats of the model with this template: by name, or found out where that is `auto`.

    Raises ValueError, which lists the names, for an unknown one.
    """
    calls = detect(template, tokenizer.control_texts) if tool_format == AUTO else _tool_format(tool_format)
    is_auto = reasoning_format == AUTO
    reasoning = detect_reasoning(template) if is_auto else _reasoning_format(reasoning_format)
    return ReplyFormats(calls, reasoning, _ONE_CALL in template)


def _tool_format(name: str) -> ToolFormat | None:
    return None if name == NONE else by_name(name)


def _reasoning_format(name: str) -> ReasoningFormat | None:
    if name == NONE:
        return None
    for known in REASONING_FORMATS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in REASONING_FORMATS)
    raise ValueError(f"no reasoning format is called {name!r}; there are {names}")
