"""What came of the cases of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema


@dataclass
class Outcome:
    """How many cases each operation answered with which status, and what was wrong, in words."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.statuses.total()

    def note(self, operation: str, status: int) -> None:
        """Counts a case that was answered."""
        self.statuses[operation, status] += 1

    def fault(self, operation: str, text: str) -> None:
        """Keeps what was wrong with an answer, or that there was none."""
        self.faults.append(f"{operation}: {text}")

    def table(self) -> str:
        """A line for each operation: its cases by status."""
        operations: dict[str, list[str]] = {}
        for (operation, status), count in sorted(self.statuses.items()):
            operations.setdefault(operation, []).append(f"{status}: {count}")
        return "".join(
            f"{sum(self.of(operation).values()):6d} {operation:45} {', '.join(told)}\n"
            for operation, told in operations.items()
        )

    def of(self, operation: str) -> dict[int, int]:
        """The cases of an operation by status."""
        return {status: count for (name, status), count in self.statuses.items() if name == operation}


def error_validator(document: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    """Knows the shape that the document gives errors."""
    envelope = {"$ref": "#/components/schemas/ErrorEnvelope", "components": document["components"]}
    return jsonschema.Draft202012Validator(envelope)
