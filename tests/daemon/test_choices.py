"""Several choices to one request: over real sockets, and as the pure functions behind them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from agentserve.daemon.errors import RequestError
from agentserve.daemon.generation.choices import MOST_CHOICES, Choices, fan_out
from agentserve.daemon.generation.generation import Generation
from agentserve.daemon.records.draft_sums import total_drafts
from agentserve.engine.protocol import (
    Accepted,
    DrafterCounts,
    DraftStats,
    Failed,
    Finished,
    GenerateRequest,
    Message,
    PrefixPin,
    RequestEvent,
    SamplingParams,
    Started,
    TextDelta,
    Timings,
)
from agentserve.engine.scheduling.scheduler import lane_of

Serve = Callable[..., Any]
QUESTION = {"role": "user", "content": "tell me something. " * 40}
CHAT: dict[str, Any] = {
    "model": "reference",
    "messages": [QUESTION],
    "temperature": 1,
    "seed": 5,
    "max_tokens": 12,
}
ASKED = GenerateRequest("r", (Message("user", "hi"),), sampling=SamplingParams(seed=7), session_id="s")


def post(live: Any, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{live.url}/v1/chat/completions", json=CHAT | fields, timeout=30)
    body: dict[str, Any] = response.json()
    return body


def texts(body: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return [choice["message"]["content"] for choice in body["choices"]]


def chunks(live: Any, **fields: Any) -> list[dict[str, Any]]:
    response = httpx.post(
        f"{live.url}/v1/chat/completions", json=CHAT | {"stream": True} | fields, timeout=30
    )
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_each_choice_is_what_a_request_with_its_seed_alone_gets(serve: Serve) -> None:
    live = serve()
    several = texts(post(live, n=3))
    assert len(set(several)) == 3
    assert several == [texts(post(live, seed=5 + choice))[0] for choice in range(3)]


def test_the_prompt_counts_once_and_the_answers_together(serve: Serve) -> None:
    live = serve()
    alone = [post(live, seed=5 + choice)["usage"] for choice in range(3)]
    prompt, answers = alone[0]["prompt_tokens"], sum(usage["completion_tokens"] for usage in alone)
    usage = post(live, n=3)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, answers)
    assert usage["total_tokens"] == prompt + answers
    ledger = live.call(lambda: live.daemon.service.ledger)
    assert (ledger.received, ledger.prompt_tokens, ledger.completion_tokens) == (4, 4 * prompt, 2 * answers)


def test_the_choices_share_one_prefill(serve: Serve) -> None:
    live = serve()
    prompt = post(live, n=4)["usage"]["prompt_tokens"]
    (worker,) = live.daemon.service.router.supervisors()
    live.until(lambda: worker.facts.stats is not None and worker.facts.stats.tokens_prefilled >= prompt)
    # Less than a block is computed anew for each of the others.
    block = worker.facts.model.block_tokens
    assert worker.facts.stats.tokens_prefilled < prompt + 3 * block


def test_a_stream_tells_each_choice_apart_and_is_the_same_text(serve: Serve) -> None:
    live = serve()
    whole = post(live, n=3)
    *content, usage = chunks(live, n=3, stream_options={"include_usage": True})
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    streamed: list[str] = ["", "", ""]
    reasons: list[list[str]] = [[], [], []]
    for choice in (choice for frame in content for choice in frame["choices"]):
        streamed[choice["index"]] += choice["delta"].get("content", "")
        if "finish_reason" in choice:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert streamed == texts(whole)
    assert reasons == [[choice["finish_reason"]] for choice in whole["choices"]]
    assert [frame["choices"][0]["delta"].get("role") for frame in content[:3]] == ["assistant"] * 3
    assert ["agentserve" in frame for frame in content] == [False] * (len(content) - 1) + [True]


def test_the_choices_of_a_stream_grow_side_by_side(serve: Serve) -> None:
    live = serve(reference_step=0.02)
    indexes = [frame["choices"][0]["index"] for frame in chunks(live, n=2, temperature=0, max_tokens=60)[2:]]
    assert indexes.index(1) < len(indexes) - indexes[::-1].index(0) - 1


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_silence_is_told_by_a_choice_that_goes_on(serve: Serve, route: str) -> None:
    live = serve(reference_step=0.1, heartbeat=0.02)
    body = {"model": "reference", "max_tokens": 3, "n": 2, "temperature": 0, "stream": True}
    asked = {"messages": [QUESTION]} if "chat" in route else {"prompt": "tell me"}
    with httpx.stream("POST", f"{live.url}/v1/{route}", json=body | asked, timeout=30) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    (end,) = [i for i, one in enumerate(choices) if one["index"] == 0 and one.get("finish_reason")]
    later = choices[end + 1 :]
    assert {one["index"] for one in later} == {1}
    assert any(not one.get("finish_reason") and not (one.get("text") or one.get("delta")) for one in later)


def test_each_choice_has_its_own_logprobs_and_calls_its_own_end(serve: Serve) -> None:
    body = post(serve(), n=2, logprobs=True, max_tokens=5)
    for choice in body["choices"]:
        told = choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in told) == choice["message"]["content"]


def test_more_choices_than_allowed_are_refused_with_the_number(serve: Serve) -> None:
    error = post(serve(), n=MOST_CHOICES + 1)["error"]
    assert (error["param"], error["message"]) == ("n", "n must be between 1 and 32, got 33")


def test_a_queue_with_room_for_one_prompt_takes_all_of_its_choices(serve: Serve) -> None:
    live = serve(queue_wait=0.001)
    # The limit counts from the first rate that was measured.
    post(live)
    assert len(texts(post(live, n=12, max_tokens=2, seed=6))) == 12


def test_a_worker_that_dies_breaks_the_stream_so_that_the_client_asks_again(serve: Serve) -> None:
    live = serve(reference_step=0.02)
    body = CHAT | {"n": 3, "stream": True, "temperature": 0, "max_tokens": 500}
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        while '"content":""' in (line := next(lines)) or not line:
            pass
        (worker,) = live.daemon.service.router.supervisors()
        os.kill(worker.facts.pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            assert "[DONE]" not in "".join(lines)


def test_a_client_that_leaves_takes_all_choices_with_it(serve: Serve) -> None:
    live = serve(reference_step=0.02)
    body = CHAT | {"n": 3, "stream": True, "temperature": 0, "max_tokens": 500}
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=body, timeout=30) as stream:
        next(stream.iter_lines())
    (worker,) = live.daemon.service.router.supervisors()
    live.until(lambda: worker.active == 0)
    assert live.daemon.service.ledger.counts().cancelled == 1


# ---- without a server


def test_only_the_first_choice_has_the_pin() -> None:
    first, second, third = fan_out([GenerateRequest("r", session_id="s", pin=PrefixPin(64), explain=True)], 3)
    assert (first.request_id, first.pin, first.explain) == ("r", PrefixPin(64), True)
    for index, other in ((1, second), (2, third)):
        assert (other.request_id, other.pin, other.explain) == (f"r.{index}", None, False)
        assert other.choice == index


def test_seeds_count_up_within_each_prompt_and_wrap_at_their_limit() -> None:
    prompts = [GenerateRequest("r", prompt=text, sampling=SamplingParams(seed=2**64 - 1)) for text in "ab"]
    assert [one.sampling.seed for one in fan_out(prompts, 2)] == [2**64 - 1, 0, 2**64 - 1, 0]
    assert {one.sampling.seed for one in fan_out([GenerateRequest("r")], 3)} == {None}


@pytest.mark.parametrize(
    "asked", [[ASKED], [GenerateRequest("r", prompt="a"), GenerateRequest("r", prompt="b")]]
)
def test_all_answers_to_a_request_share_a_lane(asked: list[GenerateRequest]) -> None:
    assert len({lane_of(request) for request in fan_out(asked, 3)}) == 1


def test_a_session_goes_on_with_the_first_choice(serve: Serve) -> None:
    live = serve()
    for choice, action in ((0, "append"), (1, "truncate")):
        said = texts(post(live, n=3, agentserve_session_id=f"session-{choice}"))
        turns = [
            QUESTION,
            {"role": "assistant", "content": said[choice]},
            {"role": "user", "content": "and?"},
        ]
        found = post(live, messages=turns, agentserve_session_id=f"session-{choice}", max_tokens=1)
        assert found["agentserve"]["prefix_action"].removeprefix("message_") == action


def events(name: str, tokens: int, begin: float, decode: float) -> list[RequestEvent]:
    drafts = DraftStats(2, tokens, 3, 0.5, (DrafterCounts("suffix", 1, 3, 2, 0),), (1, 1), (1,))
    return [
        Accepted(name, 10, 64, False, 0, 0.1),
        Started(name, "append", 4, None),
        TextDelta(name, name, tokens),
        Finished(name, "stop", 10, 4, tokens, Timings(0.1, 0.2, 0.3, begin, decode), "END", drafts=drafts),
    ]


def test_the_books_see_one_request() -> None:
    choices = Choices(Generation(), fan_out([ASKED], 2), 2)
    pieces = choices.take(
        event
        for pair in zip(events("r", 3, 1.0, 2.0), events("r.1", 5, 1.5, 4.0), strict=True)
        for event in pair
    )
    assert [
        (index, delta.text) for index, deltas in pieces for delta in deltas if isinstance(delta, TextDelta)
    ] == [
        (0, "r"),
        (1, "r.1"),
    ]
    whole = choices.whole.finished
    assert whole is not None
    assert (whole.prompt_tokens, whole.cached_tokens, whole.completion_tokens) == (10, 4, 8)
    assert (whole.timings.first_token_s, whole.timings.decode_s) == (1.0, 4.5)
    assert (whole.drafts.attempts, whole.drafts.accepted, whole.drafts.drafted_at) == (2, 4, (2, 2))
    assert (choices.whole.tokens, whole.stop_string) == (8, None)


def test_nothing_is_finished_before_the_last_choice_is() -> None:
    choices = Choices(Generation(), fan_out([ASKED], 2), 2)
    choices.take(events("r.1", 5, 1.5, 4.0))
    assert choices.whole.finished is None
    assert not choices.are_finished


def test_the_failure_of_one_choice_is_that_of_the_request() -> None:
    choices = Choices(Generation(), fan_out([ASKED], 2), 2)
    choices.take(events("r", 3, 1.0, 2.0)[:3])
    with pytest.raises(RequestError, match="broken"):
        choices.take([Failed("r.1", "internal_error", "broken")])


def test_drafts_of_different_drafters_and_lengths_add_up() -> None:
    one = DraftStats(1, 2, 2, 0.1, (DrafterCounts("a", 1, 2, 1, 0),), (1, 1), (1,))
    other = DraftStats(
        3, 4, 5, 0.2, (DrafterCounts("b", 2, 6, 5, 1), DrafterCounts("a", 1, 1, 1, 1)), (2,), (2,)
    )
    total = total_drafts([one, other])
    assert (total.steps, total.tokens, total.emitted) == (4, 6, 7)
    assert total.drafters == (DrafterCounts("a", 2, 3, 2, 1), DrafterCounts("b", 2, 6, 5, 1))
    assert (total.drafted_at, total.accepted_at) == ((3, 1), (3,))
