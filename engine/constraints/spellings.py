"""How Gemma's notation and Python write strings, keys and words."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..tool_formats.grammar import NAME_LIMIT
from .alternatives import Schema
from .lark import GrammarWriter
from .strings import expression, lengths, restrictions

_BARE_KEY = re.compile("[A-Za-z_$][A-Za-z0-9_$.-]*")
_FREE_BARE_KEY = "[A-Za-z_][A-Za-z0-9_]{0,63}"
# No white space at the ends: readers take it away.
_TRIMMED, _SHORT = r"[^\s\p{Cc}](.*[^\s\p{Cc}])?", ".{1,64}"
# Characters that stand for themselves in a string of Python, and those that a backslash stands before.
_PLAIN, _ESCAPED = r'[^"\\\p{Cc}]', r'\\["\\nrt]'


class GemmaSpelling:
    """`{city:<escape>Oslo<escape>,days:3}`: keys without quotes, strings between markers."""

    comma = ","
    words: ClassVar[Mapping[bool | None, str]] = {True: "true", False: "false", None: "null"}

    def __init__(self, writer: GrammarWriter, quote: str) -> None:
        self._writer = writer
        self._quote = quote

    def string(self, schema: Schema) -> str:
        return self._writer.up_to(self._quote, *restrictions(schema), begin=self._quote)

    def literal(self, text: str) -> str | None:
        return self._writer.exactly(text, self._quote) if self._is_writable(text) else None

    def key(self, name: str) -> str | None:
        if len(name) > NAME_LIMIT or name != name.strip() or not self._is_writable(name):
            return None
        if _BARE_KEY.fullmatch(name):
            return self._writer.quoted(f"{name}:")
        return self._writer.exactly(name, self._quote, ":")

    def free_key(self, taken: Sequence[str]) -> str:
        but = _none_of(self._writer, taken)
        bare = self._writer.terminal(f'({" & ".join([expression(_FREE_BARE_KEY), *but])}) ":"')
        limits = [expression(_TRIMMED), expression(_SHORT), *but]
        quoted = self._writer.up_to(f"{self._quote}:", *limits, begin=self._quote, without=(self._quote,))
        return f"({bare} | {quoted})"

    def _is_writable(self, text: str) -> bool:
        return self._quote not in text and _is_unicode(text)


class PythonSpelling:
    """`{"city": "Oslo", "sunny": True}`."""

    comma = ", "
    words: ClassVar[Mapping[bool | None, str]] = {True: "True", False: "False", None: "None"}

    def __init__(self, writer: GrammarWriter) -> None:
        self._writer = writer

    def string(self, schema: Schema) -> str:
        if schema.keys() & {"pattern", "format"}:
            # A pattern is about the text itself, so that has to be free of what would be escaped.
            body = " & ".join([*restrictions(schema), expression(f"{_PLAIN}*")])
            return self._writer.terminal(f'"\\"" ({body}) "\\""')
        return self._writer.terminal(expression(f'"({_PLAIN}|{_ESCAPED}){lengths(schema) or "*"}"'))

    def literal(self, text: str) -> str | None:
        # JSON's escapes mean the same in Python.
        return self._writer.quoted(self._writer.json_text(text)) if _is_unicode(text) else None

    def key(self, name: str) -> str | None:
        return self._writer.quoted(f"{self._writer.json_text(name)}: ") if _is_unicode(name) else None

    def free_key(self, taken: Sequence[str]) -> str:
        body = " & ".join([expression(f"{_PLAIN}{{1,64}}"), *_none_of(self._writer, taken)])
        return self._writer.terminal(f'"\\"" ({body}) "\\": "')

    def argument(self, name: str) -> str | None:
        """The name of an argument and what stands before its value; None for a name that Python does not take."""
        try:
            call = ast.parse(f"f({name}=0)", mode="eval").body
        except (SyntaxError, ValueError):
            return None
        is_one = isinstance(call, ast.Call) and [keyword.arg for keyword in call.keywords] == [name]
        return self._writer.quoted(f"{name}=") if is_one else None


def _none_of(writer: GrammarWriter, taken: Sequence[str]) -> list[str]:
    names = [writer.quoted(name) for name in dict.fromkeys(taken) if name and _is_unicode(name)]
    return [f"~({' | '.join(names)})"] if names else []


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 has the text: JSON can spell half of a pair of surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
