"""Grammars of tool calls: what a model has to write so that its reply is calls of the tools it was offered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from ..messages.constraint import Constraint
from ..messages.request import GenerateRequest
from ..text.tokenise import Tokenizer
from ..tool_formats.events import CallEnd, CallStart
from ..tool_formats.formats import ToolFormat
from ..tool_formats.tools import Tools, read_tools
from . import harmony
from .alternatives import Unsupported
from .errors import ConstraintError, invalid, unsupported
from .lark import GrammarWriter
from .notations import Notation, find_notation


class FreeCalls(NamedTuple):
    """What follows the token `marker`, itself included, in a reply that is free to have calls; without a marker it is
    the whole reply."""

    marker: int | None
    constraint: Constraint


class _Form(NamedTuple):
    """A model's format of calls, and how it is written."""

    form: ToolFormat
    notation: Notation
    writer: GrammarWriter

    def calls(self, tools: Iterable[str], *, several: bool) -> str:
        """An expression for calls of these tools. Raises ConstraintError."""
        tools = tuple(tools)
        self._check_names(tools)
        try:
            return self.notation.calls(self.writer, tools, several=several)
        except Unsupported as error:
            raise unsupported("tools", error.keywords) from None
        except ValueError as error:
            raise invalid(Constraint("json_schema", "", "tools"), str(error)) from None

    def _check_names(self, tools: Iterable[str]) -> None:
        """Raises ConstraintError for a tool whose name the notation can't write: its own parser knows."""
        sample = self.notation.sample
        if sample is None:
            return
        for tool in tools:
            events = self.form.parser(Tools({tool: {}})).feed(sample(tool))
            found = [event.name for event in events if isinstance(event, CallStart)]
            if found != [tool] or not any(isinstance(event, CallEnd) for event in events):
                message = f"tools: {tool!r} is a name that {self.form.name} calls can't have"
                raise ConstraintError("unsupported_parameter", message, "tools")


def required_calls(request: GenerateRequest, form: ToolFormat | None, tokenizer: Tokenizer) -> Constraint:
    """The constraint of a reply that is calls of the request's required tools; of one, where only one is allowed.

    Raises ConstraintError, also for a model that was taught no calls.
    """
    writing = _form(request, form, tokenizer)
    if writing is None:
        message = "tool_choice: calls can't be demanded of this model, which was taught none"
        raise ConstraintError("unsupported_parameter", message, "tool_choice")
    calls = writing.calls(request.required_tools, several=request.parallel_tool_calls)
    reply = writing.notation.reply(writing.writer, calls)
    return Constraint("lark", writing.writer.grammar(reply), "tools")


def answer_or_calls(
    request: GenerateRequest, asked: Constraint, form: ToolFormat | None, tokenizer: Tokenizer
) -> Constraint:
    """The constraint of a reply that is either as `asked`, or calls of the tools that the request offers.

    Where the two can't be put into one grammar it is `asked` alone. Raises ConstraintError.
    """
    writing = _form(request, form, tokenizer)
    # The rules of two grammars in Lark would get mixed up.
    if asked.kind == "lark" or writing is None or not writing.writer.tools.names:
        return asked
    writer = writing.writer
    answer = writer.json(asked.source) if asked.kind == "json_schema" else writer.regex(asked.source)
    calls = writing.calls(writer.tools.names, several=request.parallel_tool_calls)
    return Constraint("lark", writer.grammar(writing.notation.reply(writer, calls, answer)), asked.param)


def free_calls(request: GenerateRequest, form: ToolFormat | None, tokenizer: Tokenizer) -> FreeCalls | None:
    """The calls that a reply may have anywhere, where a tool is strict; None where no token marks their beginning.

    Raises ConstraintError.
    """
    writing = _form(request, form, tokenizer)
    if writing is None or not _has_strict_tool(request.tools_json or "[]"):
        return None
    writer = writing.writer
    if writing.form.has_reasoning:
        if not harmony.has_markers(writer):
            return None
        calls = writing.calls(writer.tools.names, several=request.parallel_tool_calls)
        return _free(None, writer, harmony.free_reply(writer, calls))
    marker = tokenizer.id_of(writing.notation.marker) if writing.notation.marker else None
    if marker is None:
        return None
    several = bool(writing.notation.closing)
    return _free(marker, writer, writing.calls(writer.tools.names, several=several))


def _free(marker: int | None, writer: GrammarWriter, reply: str) -> FreeCalls:
    return FreeCalls(marker, Constraint("lark", writer.grammar(reply), "tools"))


def _has_strict_tool(tools_json: str) -> bool:
    """Whether a tool wants its calls to keep to its schema (OpenAI's `strict`)."""
    functions = (tool.get("function", tool) for tool in json.loads(tools_json))
    return any(function.get("strict") is True for function in functions)


def _form(request: GenerateRequest, form: ToolFormat | None, tokenizer: Tokenizer) -> _Form | None:
    writer = GrammarWriter(tokenizer, read_tools(request.tools_json or "[]"))
    notation = find_notation(form, writer)
    return None if form is None or notation is None else _Form(form, notation, writer)
