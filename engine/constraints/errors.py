"""What can be wrong with a constraint, and the limits that are checked before it is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..messages.constraint import Constraint, ConstraintKind

# The tools of an agent, which become one grammar, take some 60 kB.
MOST_BYTES: dict[ConstraintKind, int] = {"json_schema": 128 << 10, "regex": 16 << 10, "lark": 256 << 10}
# Objects and lists within each other in a schema; llguidance reads 127 at most.
MOST_LEVELS = 100

_NAMES: dict[ConstraintKind, str] = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
}
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


class ConstraintError(Exception):
    """A constraint that can't be honoured; `param` names the field of the request."""

    def __init__(self, code: str, message: str, param: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def invalid(constraint: Constraint, reason: str) -> ConstraintError:
    """The error for a source that is wrong in itself."""
    name = _NAMES[constraint.kind]
    message = f"{constraint.param}: this {name} can't be used: {reason}"
    return ConstraintError(f"invalid_{name.lower().replace(' ', '_')}", message, constraint.param)


def unsupported(param: str, keywords: Iterable[str]) -> ConstraintError:
    """The error for a schema in this field that asserts what no grammar can promise."""
    message = f"{param}: the JSON schema uses what is not supported: {', '.join(keywords)}"
    return ConstraintError("unsupported_schema_keyword", message, param)


def check_size(constraint: Constraint) -> None:
    """Raises ConstraintError for a source that is too long, or a schema that is nested too deeply."""
    size, most = len(constraint.source.encode("utf-8", "replace")), MOST_BYTES[constraint.kind]
    if size > most:
        raise invalid(constraint, f"it has {size:,} bytes, the limit is {most:,}")
    if constraint.kind == "json_schema":
        levels = _levels(constraint.source)
        if levels > MOST_LEVELS:
            raise invalid(constraint, f"it is nested {levels} deep, the limit is {MOST_LEVELS}")


def _levels(source: str) -> int:
    """How deep the objects and lists of a JSON text are nested."""
    deepest = depth = 0
    for part in _BRACKET.findall(source):
        if part in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif part in "]}":
            depth -= 1
    return deepest
