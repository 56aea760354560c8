from __future__ import annotations

import pytest
from agentserve.daemon.workers.retry_after import LoadClock, retry_after


@pytest.mark.parametrize(
    ("seconds", "value"), [(0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (59.5, 60), (600.0, 60)]
)
def test_a_wait_is_said_in_whole_seconds_that_clients_believe(seconds: float, value: int) -> None:
    assert retry_after(seconds) == value


def test_a_first_load_is_expected_to_take_as_long_again_as_it_has_taken() -> None:
    clock = LoadClock()
    clock.begin(100.0)
    assert clock.left(103.0) == 3.0
    assert clock.left(110.0) == 10.0


def test_a_later_load_is_expected_to_take_as_long_as_the_last_one() -> None:
    clock = LoadClock()
    clock.begin(100.0)
    clock.end(108.0)
    clock.begin(500.0)
    assert clock.left(503.0) == 5.0
    assert clock.left(520.0) == 0.0
