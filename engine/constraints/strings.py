"""What JSON Schema says of a string, as expressions of llguidance's Lark over its bare text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# A slash would end the expression; one behind a backslash does not, and a backslash may be escaped itself.
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|.", re.DOTALL)
_ANY = r"(.|\n)*"

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,9}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DAY = (
    "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    "|[12][0-9]{3}-(0[13-9]|1[0-2])-(29|30)|[12][0-9]{3}-(0[13578]|1[02])-31"
    "|[12][0-9](0[48]|[2468][048]|[13579][26])-02-29"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_WORD = "[A-Za-z0-9_+-]{1,32}"
# Of each format the everyday part: all of these texts have the format.
_FORMATS = {
    "date": f"({_DAY})",
    "time": _TIME,
    "date-time": f"({_DAY})T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,6}}:{_GROUP}|::({_GROUP})?",
    "duration": "P([0-9]{1,4}[YMWD]|([0-9]{1,4}D)?T[0-9]{1,4}[HMS])",
    "hostname": _HOST,
    "email": rf"{_WORD}(\.{_WORD}){{0,3}}@{_HOST}",
    "uri": rf"[a-z][a-z0-9+.-]{{0,15}}:(//{_HOST}(:[0-9]{{1,5}})?)?(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*",
}


def expression(source: str) -> str:
    """A regular expression as Lark writes it; the whole text has to match."""
    return f"/{_SLASH.sub(_escaped, source)}/"


def anything_but(*parts: str) -> str:
    """A text that has none of these parts in it."""
    needed = [
        part for part in dict.fromkeys(parts) if not any(other in part for other in parts if other != part)
    ]
    if len(needed) == 1 and needed[0].count(needed[0][0]) == 1:
        return expression(_without(needed[0]))
    return f"/{_ANY}/ & ~{expression(_ANY + '(' + '|'.join(map(re.escape, needed)) + ')' + _ANY)}"


def _without(part: str) -> str:
    """The texts without a part whose first character comes once in it, as they are read from left to right.

    A complement would do, but with other restrictions beside it llguidance soon has too much to look through.
    """
    first, *rest = map(re.escape, part)
    if not rest:
        return f"[^{first}]*"
    # Further characters of the part, as far as it may be written; and those and one that does not go on with it.
    begun, broken = "", f"[^{first}{rest[-1]}]"
    for letter in reversed(rest[:-1]):
        begun = f"({letter}{begun})?"
        broken = f"([^{first}{letter}]|{letter}{broken})"
    again = f"{first}({begun}{first})*"
    return f"([^{first}]|{again}{broken})*({again}{begun})?"


def restrictions(schema: dict[str, Any]) -> Iterator[str]:
    """Expressions all of which the text of a string has to match; none for a string that may be anything.

    A format has to be one of `idle_keywords.FORMATS`; any other was left out before.
    """
    if "pattern" in schema:
        yield expression(_searched(schema["pattern"]))
    if "format" in schema:
        yield expression(f"({_FORMATS[schema['format']]})")
    if length := lengths(schema):
        yield expression(rf"(.|\n){length}")


def lengths(schema: dict[str, Any]) -> str:
    """How often a character comes, as a regular expression repeats it; nothing where any number will do."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    return f"{{{least},{'' if most is None else most}}}" if least or most is not None else ""


def _searched(pattern: str) -> str:
    """An expression for the texts that `pattern` matches anywhere, which is how a schema means it."""
    return "|".join(f"({_unanchored(branch)})" for branch in _branches(pattern))


def _branches(pattern: str) -> Iterator[list[str]]:
    """The parts of each alternative that stands outside of all brackets."""
    depth, parts = 0, list[str]()
    for part in _PART.findall(pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not depth:
            yield parts
            parts = []
        else:
            parts.append(part)
    yield parts


def _unanchored(parts: list[str]) -> str:
    begins, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
    inner = "".join(parts[begins : len(parts) - ends])
    return f"{'' if begins else _ANY}({inner}){'' if ends else _ANY}"


def _escaped(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(match[0], match[0])
