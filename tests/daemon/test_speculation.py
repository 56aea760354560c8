"""Speculation as a client sees it: a field to ask with, the figures of a request, and the switch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from agentserve.daemon.workers.process import Command

Serve = Callable[..., Any]
Fake = Callable[..., Command]

CHAT: dict[str, Any] = {"model": "reference", "messages": [{"role": "user", "content": "deltas=2 drafts"}]}

# The reference model answers with a row of the same letter.
STUTTER = [{"role": "user", "content": "hello"}]


def ask(live: Any, **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/chat/completions", json=CHAT | fields, timeout=30)


def test_the_answer_and_its_record_tell_what_became_of_the_drafts(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), max_draft_tokens=8)
    block = ask(live, agentserve_draft_tokens=4).json()["agentserve"]
    assert {name: block[name] for name in ("draft_tokens", "spec_attempts", "spec_accepts", "spec_full")} == {
        "draft_tokens": 4,
        "spec_attempts": 4,
        "spec_accepts": 5,
        "spec_full": 1,
    }
    assert block["accept_length"] == 2.25
    assert block["speculation"] == {
        "drafted": 9,
        "acceptance_rate": 0.5556,
        "mean_accepted": 1.25,
        "tokens_per_step": 1.833,
        "draft_length": 2.25,
        "draft_ms": 0.4,
        "drafters": [
            {"drafter": "suffix", "attempts": 3, "drafted": 8, "accepted": 5, "full": 1},
            {"drafter": "guess", "attempts": 1, "drafted": 1, "accepted": 0, "full": 0},
        ],
        "drafted_at": [4, 3, 2],
        "accepted_at": [3, 1, 1],
    }
    (record,) = httpx.get(f"{live.url}/agentserve/v1/requests").json()["requests"]
    assert (record["draft_tokens"], record["spec_attempts"], record["spec_accepts"]) == (4, 4, 5)
    assert record["drafts"]["drafters"] == block["speculation"]["drafters"]


def test_the_last_frame_of_a_stream_has_the_same_block(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    frames = ask(live, stream=True).text.split("\n\n")
    last = json.loads(frames[-3].removeprefix("data: "))
    assert last["agentserve"]["spec_attempts"] == 4


@pytest.mark.parametrize("name", ["agentserve_draft_tokens", "flashrt_K"])
@pytest.mark.parametrize("value", [-1, 2.5, "4", True, [4]])
def test_a_number_of_drafted_tokens_is_an_integer_from_0_on(
    serve: Serve, fake: Fake, name: str, value: object
) -> None:
    answer = ask(serve(command=fake()), **{name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert name in error["message"]


def test_health_tells_whether_a_model_speculates_and_what_came_of_it(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    live.until(lambda: live.daemon.service.snapshot().workers[0].drafts.steps)
    health = httpx.get(f"{live.url}/health").json()
    assert health["speculative"] is False
    assert health["models"][0]["speculation"] == {
        "speculative": False,
        "draft_model": None,
        "attempts": 4,
        "drafted": 9,
        "accepted": 5,
        "acceptance_rate": 0.5556,
        "accept_length": 2.25,
        "tokens_per_step": 1.833,
    }


@pytest.fixture
def reference(serve: Serve) -> Any:
    """A daemon whose real worker serves the reference model and may draft eight tokens."""
    # Steps so slow that the rows of a draft cost next to nothing beside them.
    return serve(reference_step=0.03, max_draft_tokens=8, draft_tokens=6)


def test_a_request_chooses_its_draft_length_up_to_the_cap_and_gets_the_same_text(reference: Any) -> None:
    answers = [
        ask(
            reference, messages=STUTTER, max_tokens=60, temperature=0, agentserve_cache_salt=str(n), **fields
        ).json()
        for n, fields in enumerate(
            ({}, {"agentserve_draft_tokens": 0}, {"flashrt_K": 3}, {"agentserve_draft_tokens": 99})
        )
    ]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    assert [answer["agentserve"]["draft_tokens"] for answer in answers] == [6, 0, 3, 8]
    attempts = [answer["agentserve"]["spec_attempts"] for answer in answers]
    assert attempts[1] == 0
    assert all(attempts[n] > 0 for n in (0, 2, 3))
    assert answers[3]["agentserve"]["speculation"]["tokens_per_step"] > 1.2
    assert httpx.get(f"{reference.url}/health").json()["speculative"] is True
