"""A step with another number of rows than the one before takes longer, and drafts have to be worth that too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agentserve.engine.drafting.length import best_length
from agentserve.engine.drafting.shapes import Shapes
from agentserve.engine.drafting.step_costs import ROWS, StepCosts

CHANGE = 0.5


def measured() -> StepCosts:
    """Rows cost hardly anything, a change of their number half a step."""
    costs = StepCosts()
    for rows in ROWS:
        costs.observe(rows, 0, 1.0 + rows / 100)
    costs.observe_change(CHANGE)
    return costs


def shapes(costs: StepCosts) -> Shapes:
    """After a step of a single row."""
    followed = Shapes(costs, least_rows=1)
    followed.ran(1, 0, costs.seconds(1, 0))
    return followed


def drafted(costs: StepCosts, followed: Shapes, rate: float) -> int:
    extra = partial(followed.extra, context=0)
    return best_length(rate, 15, costs=costs, context=0, least_rows=1, extra=extra).length


def test_single_drafts_pay_for_getting_there_and_back() -> None:
    costs = measured()
    followed = shapes(costs)
    for _ in range(60):
        for rows in (4, 1):
            followed.ran(rows, 0, costs.seconds(rows, 0) + costs.change(0))
    assert followed.extra(1, 0) == 0.0
    assert 1.9 * CHANGE < followed.extra(4, 0) < 2.1 * CHANGE


def test_a_poor_draft_is_left_alone_among_single_rows_and_made_within_a_run_of_drafts() -> None:
    costs = measured()
    followed = shapes(costs)
    assert drafted(costs, followed, 0.4) == 0
    assert drafted(costs, followed, 0.9) == 15
    for _ in range(30):
        followed.ran(16, 0, costs.seconds(16, 0))
    assert drafted(costs, followed, 0.4) == 15


def test_a_run_of_drafts_ends_when_they_are_wrong_however_dear_the_change() -> None:
    costs = measured()
    costs.observe_change(1e9)
    followed = shapes(costs)
    for _ in range(30):
        followed.ran(4, 0, costs.seconds(4, 0))
    assert drafted(costs, followed, 0.01) == 0


def test_a_step_of_one_row_behind_a_draft_tells_what_the_change_took() -> None:
    costs = measured()
    followed = shapes(costs)
    followed.ran(4, 0, costs.seconds(4, 0) + 0.1)
    before = costs.seconds(1, 0)
    followed.ran(1, 0, before + 0.1)
    assert 0.1 < costs.change(0) < CHANGE
    assert costs.seconds(1, 0) == before


def test_the_rows_of_a_draft_are_not_charged_with_the_change() -> None:
    costs = measured()
    followed = shapes(costs)
    known = costs.seconds(4, 0)
    followed.ran(4, 0, known + CHANGE)
    assert abs(costs.seconds(4, 0) - known) < 1e-9


def test_after_anything_else_no_time_is_taken_for_a_change() -> None:
    costs = measured()
    followed = shapes(costs)
    followed.interrupted()
    followed.ran(1, 0, 100.0)
    assert (costs.change(0), costs.seconds(1, 0)) == (CHANGE, 1.01)


def test_the_change_is_kept_with_the_table_and_guessed_before_it_was_measured(tmp_path: Path) -> None:
    costs, file = StepCosts(), tmp_path / "costs.json"
    assert 0 < costs.change(0) < 1
    costs = measured()
    costs.save(file)
    assert StepCosts.load(file).change(0) == CHANGE
