"""How many tokens of a draft to verify: as many as promise the most tokens per second."""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import mul

from .step_costs import ROWS, StepCosts

# A draft has to promise this much more than none, for what its rate and the table don't know.
_LEAST_GAIN = 1.1


def draft_length(rate: float, most: int, costs: StepCosts, context: int, least_rows: int) -> int:
    """The best draft length from 0 to `most` for tokens that are right with probability `rate` each.

    A step with a draft of k has k + 1 rows and gives 1 + rate + rate² + … + rateᵏ tokens on average. `least_rows` is
    2 where no step runs a single row: there the first drafted token is free, and needs no promise.
    """
    none = costs.seconds(least_rows, context)
    tokens = list(accumulate(accumulate(repeat(rate, most), mul), initial=1.0))
    best, best_gain = 0, 1.0
    for length in sorted({rows - 1 for rows in ROWS if rows - 1 <= most} | {most}):
        gain = tokens[length] * none / costs.seconds(max(length + 1, least_rows), context)
        if gain > best_gain and (gain >= _LEAST_GAIN or length < least_rows):
            best, best_gain = length, gain
    return best
