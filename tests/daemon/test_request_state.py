"""The table of moves, walked at random."""

from __future__ import annotations

import itertools

import pytest
from agentserve.daemon.records.request_state import MOVES, TERMINAL, RequestLife, RequestState
from agentserve.daemon.workers.lifecycle import IllegalMove
from hypothesis import given
from hypothesis import strategies as st

GOOD = (RequestState.QUEUED, RequestState.PREFILL, RequestState.DECODE, RequestState.DONE)
FORBIDDEN = sorted(
    set(itertools.product(RequestState, RequestState)) - {(one, to) for one in MOVES for to in MOVES[one]},
    key=str,
)


def in_state(state: RequestState) -> RequestLife:
    life = RequestLife(0.0)
    life.state = state
    return life


def test_a_good_request_passes_every_state_in_order() -> None:
    life = RequestLife(1.0)
    for now, state in enumerate(GOOD, start=2):
        assert not life.ended
        life.move(state, now)
    assert life.ended
    assert list(life.stamps.items()) == list(zip((RequestState.ENQUEUED, *GOOD), range(1, 6), strict=True))
    assert life.between(RequestState.QUEUED, RequestState.DECODE) == 2


@pytest.mark.parametrize(("state", "to"), FORBIDDEN)
def test_a_move_that_is_not_in_the_table_raises_and_changes_nothing(
    state: RequestState, to: RequestState
) -> None:
    life = in_state(state)
    with pytest.raises(IllegalMove, match=f"{to.name} while {state.name}"):
        life.move(to, 9.0)
    assert (life.state, life.stamps) == (state, {RequestState.ENQUEUED: 0.0})


def test_from_every_state_an_end_can_be_reached_and_no_end_is_left() -> None:
    for state in MOVES:
        assert MOVES[state] & {RequestState.CANCELLED, RequestState.ERROR}
    assert {
        RequestState.DONE,
        RequestState.CANCELLED,
        RequestState.ERROR,
        RequestState.REJECTED,
    } == TERMINAL
    assert not TERMINAL & set(MOVES)


@given(st.lists(st.tuples(st.sampled_from(RequestState), st.floats(0, 10)), max_size=30))
def test_any_walk_keeps_its_stamps_in_order_and_ends_at_most_once(
    steps: list[tuple[RequestState, float]],
) -> None:
    life, now, ends = RequestLife(0.0), 0.0, 0
    for to, passed in steps:
        now += passed
        before = (life.state, dict(life.stamps))
        allowed = to in MOVES.get(life.state, ())
        try:
            life.move(to, now)
        except IllegalMove:
            assert not allowed
            assert (life.state, life.stamps) == before
        else:
            assert allowed
            ends += life.ended
        times = list(life.stamps.values())
        assert times == sorted(times)
        assert next(reversed(life.stamps)) is life.state
    assert ends == life.ended
