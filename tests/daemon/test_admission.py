"""The limits of admission over HTTP, with the real worker of the mock device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from raw_http import RawRequest

Serve = Callable[..., Any]


def ask(live: Any, content: str, **fields: Any) -> httpx.Response:
    body = {
        "model": "reference",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        **fields,
    }
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)


def test_limits_are_shown(serve: Serve) -> None:
    live = serve(max_queue_depth=3, max_prompt_tokens=100, queue_wait=9.0)
    status = httpx.get(f"{live.url}/agentserve/v1/status").json()
    expected = {
        "max_queue_depth": 3,
        "max_active_sessions": 8,
        "max_prompt_tokens": 100,
        "max_output_tokens": 0,
        "max_body_bytes": 32 * 2**20,
        "capsule_budget_bytes": 2**31,
        "session_idle_ttl_s": 0.0,
        "queue_wait_s": 9.0,
    }
    assert status["limits"] == expected
    assert httpx.get(f"{live.url}/health").json()["limits"] == expected


def test_more_output_than_the_server_gives_is_refused_and_none_asked_for_is_cut(serve: Serve) -> None:
    live = serve(max_output_tokens=5)
    refused = ask(live, "hello", max_tokens=6)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    assert "5 (max_output_tokens)" in refused.json()["error"]["message"]
    usage = ask(live, "hello").json()["usage"]
    assert usage["completion_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_limit_is_a_context_overflow_that_agents_understand(
    serve: Serve, stream: bool
) -> None:
    live = serve(max_prompt_tokens=100)
    refused = ask(live, "x" * 200, stream=stream)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["n_ctx"]) == (400, "context_length_exceeded", 100)
    assert "maximum context length is 100 tokens" in error["message"]
    assert ask(live, "x").status_code == 200


@pytest.mark.parametrize(
    ("field", "value"), [("timeout", 0), ("timeout", -1), ("timeout", 1e9), ("max_decode_ms", 0)]
)
def test_a_deadline_that_can_not_be_is_refused_by_name(serve: Serve, field: str, value: float) -> None:
    refused = ask(serve(), "hello", **{field: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_a_deadline_in_milliseconds_is_the_same_as_one_in_seconds(serve: Serve) -> None:
    late = ask(serve(reference_step=0.05), "text 47", max_decode_ms=400)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")


def test_prompts_for_more_time_than_may_be_queued_are_refused_until_there_is_room(serve: Serve) -> None:
    # A step of 0.1 s for at most 512 tokens: about 2,000 prompt tokens a second, or 1,000 on a busy machine.
    live = serve(reference_step=0.1, max_active_sessions=1, queue_wait=0.05)
    (worker,) = live.daemon.router.supervisors()
    assert ask(live, "w" * 300, max_tokens=1).status_code == 200
    with ExitStack() as held, ThreadPoolExecutor(8) as pool:
        running = held.enter_context(RawRequest(live, "text 47", stream=True, temperature=0))
        running.until(b'"content":"')
        # Four are always taken, whatever they weigh: an agent and its sub-agents.
        waiting = [pool.submit(ask, live, f"{n}" * 400, max_tokens=1) for n in range(4)]
        live.until(lambda: worker.active == 5)
        live.until(lambda: worker.facts.stats is not None and worker.facts.stats.requests_queued == 4)
        refused = ask(live, "one too many " * 40, max_tokens=1)
        running.socket.close()
        assert [answer.result(30).status_code for answer in waiting] == [200] * 4
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "queue_full", "rate_limit_error")
    assert "4 queued requests take" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert ask(live, "one too many " * 40, max_tokens=1).status_code == 200
    assert live.call(live.daemon.service.ledger.counts).rejected == 1
