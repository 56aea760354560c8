"""What the benchmark scripts share: medians, tables for people, JSON, and the exit code of `--check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A figure that has to stay at or above, or else at or below, a limit."""

    name: str
    value: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def row(self) -> tuple[str, ...]:
        sign = "≥" if self.at_least else "≤"
        return self.name, f"{self.value:.3g}", f"{sign} {self.limit:g}", "met" if self.met else "MISSED"


def show_table(rows: Iterable[Sequence[str]]) -> None:
    """Columns aligned with spaces; the first row holds the heads."""
    grid = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    for row in grid:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.write("\n")


def finish(facts: dict[str, Any], tables: Iterable[Iterable[Sequence[str]]], targets: Sequence[Target],
           *, as_json: bool, check: bool) -> int:  # fmt: skip
    """Prints everything; the exit code is 1 when `check` is wanted and a target was missed."""
    if as_json:
        shown = [asdict(target) | {"met": target.met} for target in targets]
        sys.stdout.write(json.dumps({**facts, "targets": shown}, indent=2) + "\n")
    else:
        for rows in tables:
            show_table(rows)
        if targets:
            show_table([("target", "measured", "limit", ""), *(target.row() for target in targets)])
    return int(check and not all(target.met for target in targets))
