"""Writes grammars in llguidance's Lark: exact texts, JSON by a schema, values between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from ..text.tokenise import Tokenizer
from ..tool_formats.tools import Tools
from .json_schema import JSON_OPTIONS, bounded
from .strings import anything_but, expression


class GrammarWriter:
    """The grammar for one reply of a model to a request with `tools`."""

    def __init__(self, tokenizer: Tokenizer, tools: Tools) -> None:
        longest_first = sorted(tokenizer.control_texts, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._tokenizer = tokenizer
        self.tools = tools
        self._names: dict[str, str] = {}

    def grammar(self, start: str) -> str:
        """The whole source; `start` is the expression for the reply."""
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for body, name in self._names.items())])

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        return self._names.setdefault(body, f"r{len(self._names)}")

    def terminal(self, body: str) -> str:
        """The name of a terminal: a stretch of text which all of `body` is about, so that `&` and `~` may be in it."""
        return self._names.setdefault(body, f"T{len(self._names)}")

    @staticmethod
    def all_of(*parts: str) -> str:
        """The parts one after the other; empty ones are nothing."""
        return " ".join(part for part in parts if part)

    @staticmethod
    def json_text(value: object) -> str:
        # llguidance's lexer refuses this one character in a text unless it is escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    def has(self, control: str) -> bool:
        """Whether the model has a token of this text."""
        return self._tokenizer.id_of(control) is not None

    def ends_turn(self, control: str) -> bool:
        """Whether the model has a token of this text that ends its turn, so that no grammar can have it."""
        return self._tokenizer.id_of(control) in self._tokenizer.eos_ids

    def text(self, text: str) -> str:
        """Exactly this text. Where it names control tokens of the model, it is these."""
        parts, end = list[str](), 0
        for match in self._control.finditer(text):
            parts += [self.quoted(text[end : match.start()]), f"<[{self._tokenizer.id_of(match[0])}]>"]
            end = match.end()
        return self.all_of(*parts, self.quoted(text[end:]))

    def json(self, schema: str) -> str:
        """A value that keeps to a JSON Schema, which is an object given as JSON text."""
        options = {"x-guidance": JSON_OPTIONS}
        return self.rule(f"%json {self.json_text(bounded(json.loads(schema)) | options)}")

    def regex(self, source: str) -> str:
        """A text that a regular expression matches from beginning to end."""
        return self.rule(expression(source))

    def free(self, *, without: Iterable[str]) -> str:
        """A text that has none of these in it, to the end of the reply."""
        return self.terminal(anything_but(*without))

    def up_to(self, end: str, *restrictions: str, begin: str = "", without: Iterable[str] = ()) -> str:
        """A text between `begin` and `end`, which is not in it, and neither is any of `without`. All `restrictions`,
        which are expressions, hold for the text."""
        body = " & ".join([*restrictions, anything_but(end, *without)])
        if self._control.match(end):
            return self.all_of(self.text(begin), self.terminal(body), self.text(end))
        # One terminal: what is read next must not depend on where a shorter one could have ended.
        return self.terminal(self.all_of(self.quoted(begin), f"({body})", self.quoted(end)))

    def exactly(self, text: str, quote: str, behind: str = "") -> str:
        """This text between quotes, in letters even where it names control tokens, and what stands behind them."""
        if self._control.match(quote):
            return self.all_of(self.text(quote), self.quoted(text), self.text(quote + behind))
        return self.quoted(f"{quote}{text}{quote}{behind}")

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
        return self.up_to(end, without=(end.strip(),))

    @staticmethod
    def quoted(text: str) -> str:
        """This text in letters, whatever tokens it names."""
        return GrammarWriter.json_text(text) if text else ""
