"""How many tokens of a draft to verify: as many as promise the most tokens per second."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple, Protocol

from .step_costs import ROWS, StepCosts

# A draft has to promise this much more than none, for what its rate and the table don't know.
_LEAST_GAIN = 1.1


class Promise(NamedTuple):
    """The draft length that is best, and how many times the tokens per second of no draft it promises."""

    length: int = 0
    gain: float = 1.0


class Pays(Protocol):
    """Says for one step how much of a draft pays: `best_length` with all but its first arguments given."""

    def __call__(self, rate: float, most: int, token_cost: float = 0.0) -> Promise: ...


def no_extra(_rows: int) -> float:
    return 0.0


def best_length(
    rate: float,
    most: int,
    token_cost: float = 0.0,
    *,
    costs: StepCosts,
    context: int,
    least_rows: int,
    extra: Callable[[int], float] = no_extra,
) -> Promise:
    """The best draft length from 0 to `most` for tokens that are right with probability `rate` each.

    A step with a draft of k has k + 1 rows and gives 1 + rate + rate² + … + rateᵏ tokens on average. `token_cost` is
    what it takes to draft one token, in steps of a single row. `least_rows` is 2 where no step runs a single row: there
    the first drafted token is free unless it has a cost of its own, and needs no promise. `extra(rows)` is what a step
    costs beside what `costs` says.
    """
    none = costs.seconds(least_rows, context) + extra(least_rows)
    each = token_cost * costs.seconds(1, context)
    free = 0 if token_cost else least_rows - 1
    tokens = list(accumulate(accumulate(repeat(rate, most), mul), initial=1.0))
    best = Promise()
    for length in sorted({rows - 1 for rows in ROWS if rows - 1 <= most} | {most}):
        rows = max(length + 1, least_rows)
        seconds = costs.seconds(rows, context) + extra(rows) + length * each
        gain = tokens[length] * none / seconds
        if gain > best.gain and (gain >= _LEAST_GAIN or length <= free):
            best = Promise(length, gain)
    return best
