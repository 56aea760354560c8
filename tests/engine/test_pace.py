from __future__ import annotations

from agentserve.engine.config import EngineConfig, first_chunk
from agentserve.engine.scheduling.pace import Pace

CONFIG = EngineConfig(context_length=8192, chunk_seconds=0.5, min_chunk=32, first_chunk=128, max_chunk=512)


def test_the_first_chunk_is_a_guess_and_the_next_follows_the_measured_rate() -> None:
    pace = Pace(CONFIG)
    assert pace.chunk(0) == 128
    pace.prefilled(128, past=0, seconds=0.32)
    assert (pace.prefill_rate, pace.chunk(0)) == (400.0, 192)


def test_chunks_stay_within_their_limits() -> None:
    fast, slow = Pace(CONFIG), Pace(CONFIG)
    fast.prefilled(512, past=0, seconds=0.01)
    slow.prefilled(32, past=0, seconds=10.0)
    assert (fast.chunk(0), slow.chunk(0)) == (512, 32)


def test_a_slow_rate_deep_in_a_long_prompt_does_not_cut_the_next_short_one() -> None:
    pace = Pace(CONFIG)
    pace.prefilled(512, past=0, seconds=0.4)
    pace.prefilled(512, past=6000, seconds=1.6)
    assert (pace.chunk(0), pace.chunk(6100)) == (512, 160)


def test_an_unknown_depth_takes_the_rate_of_the_nearest_one_before_it() -> None:
    pace = Pace(CONFIG)
    pace.prefilled(512, past=0, seconds=1.0)
    pace.prefilled(512, past=2100, seconds=2.0)
    assert (pace.chunk(1500), pace.chunk(7000)) == (256, 128)


def test_short_steps_say_nothing_about_the_rate() -> None:
    pace = Pace(CONFIG)
    pace.prefilled(5, past=0, seconds=1.0)
    assert (pace.prefill_rate, pace.chunk(0)) == (0.0, 128)


def test_the_guess_is_smaller_for_larger_models() -> None:
    assert [first_chunk(n) for n in (10**6, 135 * 10**6, 8 * 10**9)] == [512, 512, 32]
