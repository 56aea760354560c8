"""Grammars of tool calls: what a model has to write so that its reply is calls of the tools it was offered.

Most notations of `tool_formats` have a grammar here, in llguidance's Lark. What it lets through, the parser of the
notation reads as complete calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..messages.constraint import Constraint
from ..messages.request import GenerateRequest
from ..text.tokenise import Tokenizer
from ..tool_formats import deepseek
from ..tool_formats.formats import ToolFormat
from ..tool_formats.tools import read_tools
from .errors import ConstraintError
from .lark import GrammarWriter


@dataclass(frozen=True, slots=True)
class _Notation:
    """`call(writer, tool)` writes one call. `between` stands between two, `opening` and `closing` around them all.
    `marker` is what the first call begins with, if nothing else does."""

    call: Callable[[GrammarWriter, str], str]
    marker: str | None
    between: str = "\n"
    opening: str = ""
    closing: str = ""

    def calls(self, writer: GrammarWriter, tools: Iterable[str], *, several: bool) -> str:
        """An expression for calls of these tools: for one, or for any number."""
        call = writer.rule(" | ".join(self.call(writer, tool) for tool in tools))
        more = f"({writer.all_of(writer.text(self.between), call)})*" if several else ""
        return writer.all_of(writer.text(self.opening), call, more, writer.text(self.closing))


class FreeCalls(NamedTuple):
    """What follows the token `marker`, itself included, in a reply that is free to have calls."""

    marker: int
    constraint: Constraint


def required_calls(request: GenerateRequest, form: ToolFormat | None, tokenizer: Tokenizer) -> Constraint:
    """The constraint of a reply that is calls of the request's required tools; of one, where only one is allowed.

    Raises ConstraintError for a model whose notation has no grammar.
    """
    writer = _writer(request, tokenizer)
    notation = _notation(form, writer)
    if notation is None:
        how = f"writes them as {form.name}" if form else "was taught none"
        message = f"tool_choice: calls can't be demanded of this model, which {how}"
        raise ConstraintError("unsupported_parameter", message, "tool_choice")
    calls = notation.calls(writer, request.required_tools, several=request.parallel_tool_calls)
    return Constraint("lark", writer.grammar(calls), "tools")


def answer_or_calls(
    request: GenerateRequest, asked: Constraint, form: ToolFormat | None, tokenizer: Tokenizer
) -> Constraint:
    """The constraint of a reply that is either as `asked`, or calls of the tools that the request offers.

    Where the two can't be put into one grammar it is `asked` alone.
    """
    writer = _writer(request, tokenizer)
    notation = _notation(form, writer)
    # The rules of two grammars in Lark would get mixed up.
    if asked.kind == "lark" or notation is None or not writer.tools.names:
        return asked
    answer = writer.json(asked.source) if asked.kind == "json_schema" else writer.regex(asked.source)
    calls = notation.calls(writer, writer.tools.names, several=request.parallel_tool_calls)
    return Constraint("lark", writer.grammar(f"{answer} | {calls}"), asked.param)


def free_calls(request: GenerateRequest, form: ToolFormat | None, tokenizer: Tokenizer) -> FreeCalls | None:
    """The calls that a reply may have anywhere, where a tool is strict; None where no token marks their beginning."""
    writer = _writer(request, tokenizer)
    notation = _notation(form, writer)
    if notation is None or notation.marker is None or not _has_strict_tool(request.tools_json or "[]"):
        return None
    marker = tokenizer.id_of(notation.marker)
    if marker is None:
        return None
    calls = notation.calls(writer, writer.tools.names, several=bool(notation.closing))
    return FreeCalls(marker, Constraint("lark", writer.grammar(calls), "tools"))


def _has_strict_tool(tools_json: str) -> bool:
    """Whether a tool wants its calls to keep to its schema (OpenAI's `strict`)."""
    functions = (tool.get("function", tool) for tool in json.loads(tools_json))
    return any(function.get("strict") is True for function in functions)


def _writer(request: GenerateRequest, tokenizer: Tokenizer) -> GrammarWriter:
    return GrammarWriter(tokenizer, read_tools(request.tools_json or "[]"))


def _notation(form: ToolFormat | None, writer: GrammarWriter) -> _Notation | None:
    if form is None:
        return None
    # The older generation writes a list of objects.
    if form.name == "mistral" and not writer.has("[ARGS]"):
        return _Notation(_plain_object, "[TOOL_CALLS]", ", ", "[TOOL_CALLS][", "]")
    return _NOTATIONS.get(form.name)


def _plain_object(writer: GrammarWriter, tool: str, arguments: str = "arguments") -> str:
    return writer.json(writer.json_text(_call_schema(tool, arguments, writer.tools.schema(tool))))


def _call_schema(tool: str, arguments: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object that is a call."""
    properties = {
        "name": {"const": tool},
        arguments: {"type": "object", **_moved(schema, f"properties/{arguments}")},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema that becomes a part of another: its references point to where their targets are then."""
    match schema:
        case dict():
            return {
                key: _reference(value, place) if key == "$ref" else _moved(value, place)
                for key, value in schema.items()
            }
        case list():
            return [_moved(part, place) for part in schema]
        case _:
            return schema


def _reference(target: Any, place: str) -> Any:
    is_within = isinstance(target, str) and target.startswith("#")
    return f"#/{place}{target[1:]}" if is_within else _moved(target, place)


def _llama3(writer: GrammarWriter, tool: str) -> str:
    return _plain_object(writer, tool, "parameters")


def _hermes(writer: GrammarWriter, tool: str) -> str:
    return writer.all_of(
        writer.text("<tool_call>\n"), _plain_object(writer, tool), writer.text("\n</tool_call>")
    )


def _mistral(writer: GrammarWriter, tool: str) -> str:
    return writer.all_of(writer.text(f"[TOOL_CALLS]{tool}[ARGS]"), writer.arguments(tool))


def _deepseek(writer: GrammarWriter, tool: str) -> str:
    begin, separator, end = deepseek.CALL_BEGIN, deepseek.SEPARATOR, deepseek.CALL_END
    arguments = writer.arguments(tool)
    bare = writer.all_of(writer.text(f"{begin}{tool}{separator}"), arguments, writer.text(end))
    typed = writer.text(f"{begin}function{separator}{tool}\n```json\n")
    fenced = writer.all_of(typed, arguments, writer.text(f"\n```{end}"))
    return f"{bare} | {fenced}"


def _qwen3_coder(writer: GrammarWriter, tool: str) -> str:
    values = [
        (argument, f"<parameter={argument}>\n", "\n</parameter>\n")
        for argument in writer.tools.argument_names(tool)
    ]
    head = writer.text(f"<tool_call>\n<function={tool}>\n")
    return writer.all_of(head, *writer.values(tool, values), writer.text("</function>\n</tool_call>"))


def _glm(writer: GrammarWriter, tool: str) -> str:
    values = [
        (argument, f"<arg_key>{argument}</arg_key>\n<arg_value>", "</arg_value>\n")
        for argument in writer.tools.argument_names(tool)
    ]
    head = writer.text(f"<tool_call>{tool}\n")
    return writer.all_of(head, *writer.values(tool, values), writer.text("</tool_call>"))


_NOTATIONS = {
    "hermes": _Notation(_hermes, "<tool_call>"),
    "qwen3_coder": _Notation(_qwen3_coder, "<tool_call>"),
    "glm": _Notation(_glm, "<tool_call>"),
    "llama3": _Notation(_llama3, None, "; "),
    "mistral": _Notation(_mistral, "[TOOL_CALLS]", ""),
    "deepseek": _Notation(_deepseek, deepseek.CALLS_BEGIN, "", deepseek.CALLS_BEGIN, deepseek.CALLS_END),
}
