"""What a step costs by its number of rows and the context before it: a small table, measured on this machine.

Rows are cheap until the kernels are short of arithmetic, and attention makes rows dearer the longer the context, so
both matter. Contexts fall into buckets that double: under 512 tokens, under 1024, under 2048 and so on.
"""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path

ROWS = (1, 2, 4, 8, 16)
# SmolLM2 at 512 tokens of context on two cores; used until something is measured.
_USUAL = (1.0, 1.1, 1.2, 1.5, 2.2)
# A change of the number of rows, in steps of a single row, until one is measured.
_USUAL_CHANGE = 0.3
_SMALLEST = 512
# How much of the difference to a measured step a cell takes over. What else runs on the machine only ever makes steps
# slower, so a faster one tells more, and a slower one has to be seen often.
_FASTER, _SLOWER = 0.5, 0.05


def bucket_of(context: int) -> int:
    return (context // _SMALLEST).bit_length()


def context_of(bucket: int) -> int:
    """A context in the middle of a bucket, in tokens; a multiple of 256."""
    return 256 if bucket == 0 else 3 * (_SMALLEST << bucket - 1) // 2


class StepCosts:
    """Seconds of a step. Unknown cells are filled from shallower contexts, which makes drafts look cheap there
    until the first ones were tried."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], float] = {}
        self._lines: dict[int, tuple[float, ...]] = {}
        self._change: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether anything was; until then costs are in units of a step of a single row."""
        return bool(self._cells)

    def seconds(self, rows: int, context: int) -> float:
        """The cost of a step, in seconds, or in costs of a single row when nothing was measured yet."""
        line = self._line(bucket_of(context))
        if rows >= ROWS[-1]:
            return line[-1] + (rows - ROWS[-1]) * (line[-1] - line[-2]) / (ROWS[-1] - ROWS[-2])
        upper = next(i for i, known in enumerate(ROWS) if known >= rows)
        if ROWS[upper] == rows:
            return line[upper]
        share = (rows - ROWS[upper - 1]) / (ROWS[upper] - ROWS[upper - 1])
        return line[upper - 1] + share * (line[upper] - line[upper - 1])

    def change(self, context: int) -> float:
        """What a step takes longer because the one before had another number of rows, in the unit of `seconds`."""
        return _USUAL_CHANGE * self.seconds(1, context) if self._change is None else self._change

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Lets a step that was run anyway correct the table; numbers of rows between those of ROWS do not, nor what is
        no time at all."""
        if rows not in ROWS or seconds <= 0:
            return
        key = bucket_of(context), rows
        self._cells[key] = _moved(self._cells.get(key, seconds), seconds)
        self._lines.clear()

    def observe_change(self, seconds: float) -> None:
        """A step took so much longer than one with as many rows before it. Counts once steps were measured."""
        if self.is_measured and seconds > 0:
            self._change = seconds if self._change is None else _moved(self._change, seconds)

    def save(self, path: Path) -> None:
        """Writes the table, whole or not at all. Raises OSError."""
        cells = [[bucket, rows, seconds] for (bucket, rows), seconds in sorted(self._cells.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"cells": cells, "change": self._change}))
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> StepCosts:
        """The table that `save` wrote; an empty one when there is none or it can't be read."""
        costs = cls()
        try:
            kept = json.loads(path.read_text())
            for bucket, rows, seconds in kept["cells"]:
                costs._cells[int(bucket), int(rows)] = float(seconds)
            costs._change = None if kept["change"] is None else float(kept["change"])
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        return costs

    def _line(self, bucket: int) -> tuple[float, ...]:
        """The costs for ROWS in a bucket."""
        if bucket not in self._lines:
            self._lines[bucket] = self._fill(bucket)
        return self._lines[bucket]

    def _fill(self, bucket: int) -> tuple[float, ...]:
        here = self._measured(bucket)
        model = _USUAL if not bucket or len(here) == len(ROWS) else self._line(bucket - 1)
        # Scaled to what is known here, for the fewest rows: a single row's, once anything was decoded here.
        scale = next((here[rows] / model[ROWS.index(rows)] for rows in ROWS if rows in here), 1.0)
        filled = (here.get(rows, scale * usual) for rows, usual in zip(ROWS, model, strict=True))
        # More rows never cost less; a filled cell can't know that.
        return tuple(accumulate(filled, max))

    def _measured(self, bucket: int) -> dict[int, float]:
        """The known cells of a bucket by rows. None is dearer than one of more rows: then it was disturbed."""
        known = [rows for rows in reversed(ROWS) if (bucket, rows) in self._cells]
        least = accumulate((self._cells[bucket, rows] for rows in known), min)
        return dict(zip(known, least, strict=True))


def _moved(known: float, seconds: float) -> float:
    """A known time after one more measurement. One disturbed step must not count as many."""
    weight = _FASTER if seconds < known else _SLOWER
    return known + weight * (min(seconds, 3 * known) - known)
