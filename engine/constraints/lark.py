"""Writes grammars in llguidance's Lark: exact texts, JSON by a schema, values between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from ..text.tokenise import Tokenizer
from ..tool_formats.tools import Tools
from .json_schema import JSON_OPTIONS, bounded

# A slash would end the expression; one behind a backslash does not, and a backslash may be escaped itself.
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)


class GrammarWriter:
    """The grammar for one reply of a model to a request with `tools`."""

    def __init__(self, tokenizer: Tokenizer, tools: Tools) -> None:
        longest_first = sorted(tokenizer.control_texts, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._id_of = tokenizer.id_of
        self.tools = tools
        self._rules: list[str] = []

    def grammar(self, start: str) -> str:
        """The whole source; `start` is the expression for the reply."""
        return "\n".join([f"start: {start}", *self._rules])

    def rule(self, body: str, options: str = "") -> str:
        """A new rule; returns its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    @staticmethod
    def all_of(*parts: str) -> str:
        """The parts one after the other; empty ones are nothing."""
        return " ".join(part for part in parts if part)

    @staticmethod
    def json_text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    def has(self, control: str) -> bool:
        """Whether the model has a token of this text."""
        return self._id_of(control) is not None

    def text(self, text: str) -> str:
        """Exactly this text. Where it names control tokens of the model, it is these."""
        parts, end = list[str](), 0
        for match in self._control.finditer(text):
            parts += [self._quoted(text[end : match.start()]), f"<[{self._id_of(match[0])}]>"]
            end = match.end()
        return self.all_of(*parts, self._quoted(text[end:]))

    def json(self, schema: str) -> str:
        """A value that keeps to a JSON Schema, which is an object given as JSON text."""
        options = {"x-guidance": JSON_OPTIONS}
        return self.rule(f"%json {self.json_text(bounded(json.loads(schema)) | options)}")

    def regex(self, source: str) -> str:
        """A text that a regular expression matches from beginning to end."""
        return self.rule(f"/{_SLASH.sub(_escaped, source)}/")

    def arguments(self, tool: str) -> str:
        """A JSON object with the arguments of a tool."""
        return self.json(self.json_text({"type": "object", **self.tools.schema(tool)}))

    def values(self, tool: str, arguments: Iterable[tuple[str, str, str]]) -> Iterator[str]:
        """The values of arguments, each given with what stands before and behind it; those that are not required may
        be left out."""
        required = self.tools.schema(tool).get("required")
        for name, before, behind in arguments:
            value = self.all_of(self.text(before), self._value(tool, name, behind))
            yield value if isinstance(required, list) and name in required else f"({value})?"

    def _value(self, tool: str, argument: str, end: str) -> str:
        """A value and `end`. What may be a string is written bare, anything else as JSON."""
        root = self.tools.schema(tool)
        schema = root["properties"][argument]
        types = self.tools.types(tool, argument)
        words = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            return self.all_of(f"({' | '.join(map(self.json_text, words))})", self.text(end))
        if types and "string" not in types:
            # Definitions that the schema may refer to.
            shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
            return self.all_of(self.json(self.json_text({**schema, **shared})), self.text(end))
        if self._control.search(end):
            return self.all_of(r"/(.|\n)*/", self.text(end))
        return self.rule(r"/(.|\n)*/", f"[suffix={self._quoted(end)}]")

    def _quoted(self, text: str) -> str:
        return self.json_text(text) if text else ""


def _escaped(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(match[0], match[0])
