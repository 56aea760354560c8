from __future__ import annotations

import pytest
from agentserve.engine.prompts.prompting import PromptError
from agentserve.engine.protocol import GenerateRequest
from agentserve.engine.scheduling.admission import ALWAYS_QUEUED, Admission
from agentserve.engine.scheduling.backlog import Backlog

RATE = 100.0


def request(limit: int | None) -> GenerateRequest:
    return GenerateRequest("r", prompt="x", max_new_tokens=limit)


def backlog(to_compute: float, queued: int = ALWAYS_QUEUED, seconds: float = 1e6) -> Backlog:
    return Backlog(queued + 1, queued, int(to_compute), to_compute, seconds)


@pytest.mark.parametrize(("asked", "given"), [(None, 50), (50, 50), (7, 7)])
def test_an_output_limit_that_is_allowed_stays_and_none_becomes_the_cap(
    asked: int | None, given: int
) -> None:
    assert Admission(max_output_tokens=50).limited(request(asked)).max_new_tokens == given


def test_an_output_limit_over_the_cap_is_refused_and_not_cut() -> None:
    with pytest.raises(PromptError, match=r"51 output tokens .* 50 \(max_output_tokens\)") as caught:
        Admission(max_output_tokens=50).limited(request(51))
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


def test_without_a_cap_nothing_is_limited() -> None:
    assert Admission().limited(request(None)).max_new_tokens is None
    Admission().check_prompt(10**9)
    Admission().check_queue(backlog(1e9, queued=100), RATE, 10**9)


def test_a_prompt_over_the_limit_is_a_context_overflow_with_both_numbers() -> None:
    limits = Admission(max_prompt_tokens=10)
    limits.check_prompt(10)
    with pytest.raises(PromptError) as caught:
        limits.check_prompt(11)
    error = caught.value
    assert (error.status, error.code, error.prompt_tokens, error.limit) == (
        400,
        "context_length_exceeded",
        11,
        10,
    )


def test_the_queue_takes_prompts_for_its_time_and_says_when_there_is_room() -> None:
    limits = Admission(queue_wait_s=60.0)
    limits.check_queue(backlog(5_000), RATE, 1_000)
    with pytest.raises(
        PromptError, match=r"4 queued requests take 50 s already \(queue_wait 60 s\)"
    ) as caught:
        limits.check_queue(backlog(5_000), RATE, 1_700)
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert caught.value.retry_after_s == pytest.approx(7.0)


def test_nobody_is_asked_to_wait_longer_than_there_is_work() -> None:
    with pytest.raises(PromptError) as caught:
        Admission(queue_wait_s=60.0).check_queue(backlog(5_000, seconds=50.0), RATE, 100_000)
    assert caught.value.retry_after_s == 50.0


def test_an_agent_with_its_sub_agents_is_taken_whatever_their_prompts_weigh() -> None:
    Admission(queue_wait_s=1.0).check_queue(backlog(1e6, queued=ALWAYS_QUEUED - 1), RATE, 10**6)


def test_nothing_is_refused_by_a_rate_that_was_not_measured() -> None:
    Admission(queue_wait_s=1.0).check_queue(backlog(1e6), 0.0, 10**6)
