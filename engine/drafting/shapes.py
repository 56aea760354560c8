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
        """What a step of `rows` costs beside its own time, in the unit of `StepCosts.seconds`.

        The first draft of a run is charged with the way there and back, as far as the run is likely to be short. So
        within a run going on and ending it are free: whoever charged the end would never see it come.
        """
        change = self._costs.change(context)
        if self._before > self._least_rows:
            return 0.0 if rows in (self._before, self._least_rows) else change
        return 0.0 if rows == self._least_rows else 2 * change * (1 - self._stays)

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
