"""What a draft model's work costs, and how much of it may be spent on finding out whether it would pay.

All in steps of the model that is drafted for, of a single row at the same context: a ratio of two measured times, which
is there from the first step on, as that of the two models' parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from .step_costs import ROWS, StepCosts

# Together a hundredth of the decode steps: for catching up, and for drafting a token once that is done.
_SHARE = 0.005
# What may be saved up for a long text to be caught up with.
_MOST_SAVED = 50.0


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """`draft` and `target` are the tables of the two models, `share` the parameters of one for each of the other's."""

    draft: StepCosts
    target: StepCosts
    share: float

    def token(self, context: int) -> float:
        """What drafting one token takes."""
        return self._step(1, context)

    def catching_up(self, tokens: int, context: int) -> float:
        """What computing known tokens takes; they go many at a time, so each costs a part of a step."""
        return tokens * self._step(ROWS[-1], context) / ROWS[-1]

    def spent(self, seconds: float, context: int) -> float:
        """What took so long; 0 before steps were measured."""
        return seconds / self.target.seconds(1, context) if self.target.is_measured else 0.0

    def _step(self, rows: int, context: int) -> float:
        if self.draft.is_measured and self.target.is_measured:
            return self.draft.seconds(rows, context) / self.target.seconds(1, context)
        return self.share * self.target.seconds(rows, context) / self.target.seconds(1, context)


class Allowance:
    """A small share of the decode steps, saved up until it covers what somebody wants to spend."""

    def __init__(self) -> None:
        self._saved = 0.0

    def earn(self) -> None:
        """A decode step was run."""
        self._saved = min(self._saved + _SHARE, _MOST_SAVED)

    def covers(self, cost: float) -> bool:
        return self._saved >= cost

    def spend(self, cost: float) -> None:
        self._saved -= cost
