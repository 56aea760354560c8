"""What it costs that a step has more or fewer rows than the one before.

A graph prepares each of its nodes anew when the shape of its input changes: 5 ms for SmolLM2, half a step, whatever the
number of rows. So a single draft among steps of one row pays that twice, and a run of drafts of one length once.
"""

from __future__ import annotations

from .step_costs import StepCosts

# How much a step moves the share of drafts that were followed by one of the same length.
_STAYS_WEIGHT = 0.1


class Shapes:
    """Follows the decode steps of one runner; `least_rows` are those of a step without a draft."""

    def __init__(self, costs: StepCosts, least_rows: int) -> None:
        self._costs = costs
        self._least_rows = least_rows
        self._before = 0
        self._stays = 0.5

    def extra(self, rows: int, context: int) -> float:
        """What a step of `rows` costs beside its own time: getting there from the step before and, unless the next
        one is alike, back again. In the unit of `StepCosts.seconds`."""
        change = self._costs.change(context)
        entering = change if rows != self._before else 0.0
        return entering + (change * (1 - self._stays) if rows != self._least_rows else 0.0)

    def ran(self, rows: int, context: int, seconds: float) -> None:
        """A decode step was run: the tables learn from it."""
        before, self._before = self._before, rows
        if before > self._least_rows:
            self._stays += _STAYS_WEIGHT * ((rows == before) - self._stays)
        if rows == before:
            self._costs.observe(rows, context, seconds)
        elif before and rows == self._least_rows:
            # The one whose own time is known best.
            self._costs.observe_change(seconds - self._costs.seconds(rows, context))
        elif before:
            self._costs.observe(rows, context, seconds - self._costs.change(context))

    def interrupted(self) -> None:
        """Something else was run."""
        self._before = 0
