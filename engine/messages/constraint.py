"""What a reply may be asked to be; `protocol` has it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConstraintKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the whole answer has to be a text of.

    `source` is a JSON Schema as JSON text, a regular expression that matches from beginning to end, or a grammar in
    llguidance's dialect of Lark. `param` is the field of the request that asks for it, as errors name it.
    """

    kind: ConstraintKind
    source: str
    param: str
