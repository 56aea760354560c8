"""One JSON value followed character by character (RFC 8259), so that it can be passed on while it arrives."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

MAX_DEPTH = 128  # containers within each other

_SPACE = " \t\n\r"
_BEGINS_SCALAR = "-0123456789tfn"
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_WHOLE_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_WHOLE_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{0,4})?')


class _Next(Enum):
    """What may come next, white space apart."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    IN_STRING = auto()
    IN_ESCAPE = auto()
    IN_SCALAR = auto()
    NOTHING = auto()


_OPENS_VALUE = (_Next.VALUE, _Next.VALUE_OR_END)
_OPENS_KEY = (_Next.KEY, _Next.KEY_OR_END)
_MAY_END = (_Next.VALUE_OR_END, _Next.KEY_OR_END, _Next.COMMA_OR_END)


class Scanned(NamedTuple):
    """The first `length` characters belong to the value; `text` is how they are passed on."""

    text: str
    length: int


class JsonScanner:
    """Says how far a text belongs to one JSON value.

    `done`: the value is complete; a number or a word is so only when another character follows. `failed`: the next
    character can't belong to any. Control characters and lone surrogates within strings come out as
    escapes: JSON forbids the first, though models write them, and UTF-8 the second.
    """

    def __init__(self) -> None:
        self._next = _Next.VALUE
        self._closers: list[str] = []
        self._string_is_key = False
        self._token = ""
        self.failed = False

    @property
    def done(self) -> bool:
        return self._next is _Next.NOTHING

    def push(self, text: str) -> Scanned:
        """Follows the value into `text`, up to its end or to the first character that is wrong."""
        at, parts = 0, []
        while at < len(text) and not self.done and not self.failed:
            part, at = self._step(text, at)
            parts.append(part)
        return Scanned("".join(parts), at)

    def _step(self, text: str, at: int) -> tuple[str, int]:
        match self._next:
            case _Next.IN_STRING:
                return self._string(text, at)
            case _Next.IN_ESCAPE:
                return self._escape(text, at)
            case _Next.IN_SCALAR:
                return self._scalar(text, at)
        character = text[at]
        if character in _SPACE or self._structure(character):
            return character, at + 1
        if self._next in _OPENS_VALUE and character in _BEGINS_SCALAR:
            self._next, self._token = _Next.IN_SCALAR, ""
            return self._scalar(text, at)
        self.failed = True
        return "", at

    def _structure(self, character: str) -> bool:
        """Takes a character that stands between values, or opens one; whether it fits."""
        if self._closers and character == self._closers[-1] and self._next in _MAY_END:
            self._closers.pop()
            self._value_ended()
        elif character == '"' and self._next in (*_OPENS_KEY, *_OPENS_VALUE):
            self._string_is_key = self._next in _OPENS_KEY
            self._next = _Next.IN_STRING
        elif character in "{[" and self._next in _OPENS_VALUE and len(self._closers) < MAX_DEPTH:
            self._closers.append("}" if character == "{" else "]")
            self._next = _Next.KEY_OR_END if character == "{" else _Next.VALUE_OR_END
        elif character == ":" and self._next is _Next.COLON:
            self._next = _Next.VALUE
        elif character == "," and self._next is _Next.COMMA_OR_END:
            self._next = _Next.KEY if self._closers[-1] == "}" else _Next.VALUE
        else:
            return False
        return True

    def _string(self, text: str, at: int) -> tuple[str, int]:
        match = _PLAIN.match(text, at)
        assert match is not None
        if match.end() > at:
            return match[0], match.end()
        character = text[at]
        if character == "\\":
            self._next, self._token = _Next.IN_ESCAPE, "\\"
            return character, at + 1
        if character != '"':
            return f"\\u{ord(character):04x}", at + 1
        if self._string_is_key:
            self._next = _Next.COLON
        else:
            self._value_ended()
        return character, at + 1

    def _escape(self, text: str, at: int) -> tuple[str, int]:
        self._token += text[at]
        if not _ESCAPE.fullmatch(self._token):
            self.failed = True
            return "", at
        if _WHOLE_ESCAPE.fullmatch(self._token):
            self._next = _Next.IN_STRING
        return text[at], at + 1

    def _scalar(self, text: str, at: int) -> tuple[str, int]:
        match = _SCALAR.match(text, at)
        assert match is not None
        self._token += match[0]
        if match.end() < len(text):
            if _WHOLE_SCALAR.fullmatch(self._token):
                self._value_ended()
            else:
                self.failed = True
        return match[0], match.end()

    def _value_ended(self) -> None:
        self._next = _Next.COMMA_OR_END if self._closers else _Next.NOTHING
