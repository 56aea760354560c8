"""The notations of `tool_formats` as grammars, in llguidance's Lark. What one lets through, the parser of the notation
reads as complete calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..tool_formats import deepseek
from ..tool_formats.formats import ToolFormat
from ..tool_formats.gemma import CODE, CODE_END, FUNCTION_GEMMA, GEMMA4
from ..tool_formats.gemma import Notation as GemmaNotation
from . import harmony
from .lark import GrammarWriter
from .spellings import GemmaSpelling, PythonSpelling
from .values import Values


@dataclass(frozen=True, slots=True)
class Notation:
    """`call(writer, tool)` writes one call, None where no arguments fit the tool's schema. `between` stands between two,
    `opening` and `closing` around them all.

    `marker` is what the first call begins with, if nothing else does. `sample(tool)` is a call without arguments, for
    notations that can't write every name. `thought` is what may stand before an answer or the calls, and `answer`
    what an answer begins with.
    """

    call: Callable[[GrammarWriter, str], str | None]
    marker: str | None
    between: str = "\n"
    opening: str = ""
    closing: str = ""
    sample: Callable[[str], str] | None = None
    thought: Callable[[GrammarWriter], str] | None = None
    answer: str = ""
    is_single: bool = False

    def calls(self, writer: GrammarWriter, tools: Iterable[str], *, several: bool) -> str:
        """An expression for calls of these tools: for one, or for any number. Raises Unsupported, and ValueError for
        a schema that is damaged or that nothing fits."""
        call = writer.rule(" | ".join(self._one(writer, tool) for tool in tools))
        has_more = several and not self.is_single
        more = f"({writer.all_of(writer.text(self.between), call)})*" if has_more else ""
        return writer.all_of(writer.text(self.opening), call, more, writer.text(self.closing))

    def reply(self, writer: GrammarWriter, calls: str, answer: str = "") -> str:
        """A whole reply: calls, or an answer if there is an expression for one."""
        either = f"{writer.all_of(writer.text(self.answer), answer)} | {calls}" if answer else calls
        return writer.all_of(self.thought(writer), f"({either})") if self.thought else either

    def _one(self, writer: GrammarWriter, tool: str) -> str:
        call = self.call(writer, tool)
        if call is None:
            raise ValueError(f"no arguments of {tool!r} fit it")
        return call


def find_notation(form: ToolFormat | None, writer: GrammarWriter) -> Notation | None:
    """How a model of this format and with the writer's vocabulary writes calls; None for one that was taught none."""
    if form is None:
        return None
    # The older generation writes a list of objects.
    if form.name == "mistral" and not writer.has("[ARGS]"):
        return Notation(_plain_object, "[TOOL_CALLS]", ", ", "[TOOL_CALLS][", "]")
    if form.name == "harmony" and writer.ends_turn(harmony.CALL):
        return _HARMONY_ONE
    return _NOTATIONS[form.name]


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


def _gemma(notation: GemmaNotation, writer: GrammarWriter, tool: str) -> str | None:
    values = Values(writer, GemmaSpelling(writer, notation.quote), dict(writer.tools.schema(tool)))
    return _around(writer, f"{notation.start}call:{tool}{{", values.arguments(), f"}}{notation.end}")


def _gemma_notation(notation: GemmaNotation) -> Notation:
    call, start, end = partial(_gemma, notation), notation.start, notation.end
    return Notation(call, start, between="", sample=lambda tool: f"{start}call:{tool}{{}}{end}")


def _python(writer: GrammarWriter, tool: str) -> str | None:
    spelling = PythonSpelling(writer)
    arguments = Values(writer, spelling, dict(writer.tools.schema(tool))).arguments(spelling.argument)
    return _around(writer, f"{tool}(", arguments, ")")


def _around(writer: GrammarWriter, begin: str, arguments: str | None, end: str) -> str | None:
    return None if arguments is None else writer.all_of(writer.text(begin), arguments, writer.text(end))


_HARMONY_ONE = Notation(
    harmony.call, None, sample=harmony.sample, thought=harmony.thought, answer=harmony.ANSWER, is_single=True
)
_NOTATIONS = {
    "hermes": Notation(_hermes, "<tool_call>"),
    "qwen3_coder": Notation(_qwen3_coder, "<tool_call>"),
    "glm": Notation(_glm, "<tool_call>"),
    "llama3": Notation(_llama3, None, "; "),
    "mistral": Notation(_mistral, "[TOOL_CALLS]", ""),
    "deepseek": Notation(_deepseek, deepseek.CALLS_BEGIN, "", deepseek.CALLS_BEGIN, deepseek.CALLS_END),
    "gemma4": _gemma_notation(GEMMA4),
    "function_gemma": _gemma_notation(FUNCTION_GEMMA),
    "tool_code": Notation(
        _python,
        None,
        opening=f"{CODE}\n",
        closing=CODE_END,
        sample=lambda tool: f"{CODE}\n{tool}(){CODE_END}",
    ),
    # The marker of a call ends the turn in the vocabularies of gpt-oss; elsewhere another call may follow.
    "harmony": replace(
        _HARMONY_ONE, between=f"{harmony.CALL}{harmony.NEXT}", closing=harmony.CALL, is_single=False
    ),
}
