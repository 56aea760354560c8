from __future__ import annotations

import itertools

import pytest
from agentserve.daemon.workers.lifecycle import MOVES, Happened, IllegalMove, State, move

ALLOWED = {(state, happened) for state, moves in MOVES.items() for happened in moves}


def test_a_worker_lives_and_ends_in_order() -> None:
    state = State.STOPPED
    seen = []
    for happened in (Happened.START, Happened.READY, Happened.STOP, Happened.EXITED):
        state = move(state, happened)
        seen.append(state)
    assert seen == [State.STARTING, State.READY, State.STOPPING, State.STOPPED]


def test_an_exit_that_nobody_asked_for_is_a_failure_and_can_be_started_again() -> None:
    for state in (State.STARTING, State.READY):
        assert move(state, Happened.EXITED) is State.FAILED
    assert move(State.FAILED, Happened.START) is State.STARTING


@pytest.mark.parametrize(
    ("state", "happened"), sorted(set(itertools.product(State, Happened)) - ALLOWED, key=str)
)
def test_a_move_that_is_not_in_the_table_raises(state: State, happened: Happened) -> None:
    with pytest.raises(IllegalMove, match=f"{happened.name} while {state.name}"):
        move(state, happened)


def test_every_state_can_be_reached_and_left() -> None:
    reached = {target for moves in MOVES.values() for target in moves.values()}
    assert reached == set(State) == set(MOVES)
