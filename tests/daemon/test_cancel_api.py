"""Cancelling by id: where a request may be, how it ends for its client, and what is left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from agentserve.daemon.workers.process import Command
from raw_http import LAST_CHUNK, RawRequest, frames

Fake = Callable[..., Command]
Serve = Callable[..., Any]
NAMED = "X-Request-ID: mine\r\n"


def delete(live: Any, path: str) -> Any:
    return httpx.delete(f"{live.url}/agentserve/v1/requests{path}").json()


def last(live: Any) -> Any:
    live.until(lambda: not live.daemon.service.ledger.active)
    return next(live.daemon.service.records.newest())


def test_a_stream_ends_with_an_error_frame_and_is_not_tried_again(
    serve: Serve, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = serve(command=fake())
    with RawRequest(live, "deltas=1 hold", stream=True) as raw:
        raw.until(b"w0 ")
        call_id = frames(raw.received)[0]["id"]
        assert delete(live, f"/{call_id}") == {"cancelled": [call_id]}
        response = raw.to_the_end()
    assert frames(response)[-1]["error"]["message"] == "The request was cancelled by its id"
    assert b"finish_reason" not in response
    assert not response.endswith(LAST_CHUNK)
    live.until(lambda: "cancel cancelled_by_id" in caplog.text)
    record = last(live)
    assert (record.terminal_state, record.reason, record.status) == ("cancelled", "cancelled_by_id", 200)


@pytest.mark.parametrize("stream", [True, False])
def test_before_the_first_byte_it_is_a_status_that_no_client_retries(
    serve: Serve, fake: Fake, stream: bool
) -> None:
    live = serve(command=fake("--slow-load", "0.5"), ready=False)
    with RawRequest(live, "hold", headers=NAMED, stream=stream) as raw:
        live.until(lambda: len(live.daemon.service.ledger.active) == 1)
        assert len(delete(live, "/mine")["cancelled"]) == 1
        response = raw.until(b"}}")
    assert response.startswith(b"HTTP/1.1 499 ")
    assert b'"code":"request_cancelled"' in response
    live.until(lambda: live.daemon.startup.state.phase == "ready")
    assert live.daemon.router.supervisors()[0].active == 0
    assert last(live).status == 499


def test_an_answer_that_is_not_streamed_is_cancelled_too(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with RawRequest(live, "deltas=1 hold", headers=NAMED) as raw:
        live.until(lambda: live.daemon.router.supervisors()[0].active == 1)
        answer = httpx.post(f"{live.url}/v1/requests/mine/cancel").json()
        assert len(answer["cancelled"]) == 1
        assert raw.until(b"}}").startswith(b"HTTP/1.1 499 ")
    live.until(lambda: live.daemon.router.supervisors()[0].active == 0)


def test_one_that_had_ended_is_left_as_it_is(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    body = {"model": "reference", "messages": [{"role": "user", "content": "deltas=1"}]}
    call_id = httpx.post(f"{live.url}/v1/chat/completions", json=body).json()["id"]
    for _ in range(2):
        assert delete(live, f"/{call_id}") == {"cancelled": [], "state": "done", "id": call_id}
    assert live.call(live.daemon.service.ledger.counts).cancelled == 0


def test_all_of_a_session_or_all_there_are(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with (
        RawRequest(live, "hold", agentserve_session_id="a") as one,
        RawRequest(live, "hold", agentserve_session_id="a") as two,
        RawRequest(live, "deltas=1 hold", stream=True) as other,
    ):
        other.until(b"w0 ")
        live.until(lambda: live.daemon.router.supervisors()[0].active == 3)
        assert len(delete(live, "?session=a")["cancelled"]) == 2
        for raw in (one, two):
            raw.until(b"}}")
        assert delete(live, "?session=a") == {"cancelled": []}
        assert len(delete(live, "?all=true")["cancelled"]) == 1
        other.to_the_end()
    live.until(lambda: not live.daemon.service.ledger.active)
    assert live.call(live.daemon.service.ledger.counts).cancelled == 3


@pytest.mark.parametrize("query", ["", "?all=false", "?all=true&session=a"])
def test_what_to_cancel_must_be_said_exactly(serve: Serve, fake: Fake, query: str) -> None:
    live = serve(command=fake())
    answer = httpx.delete(f"{live.url}/agentserve/v1/requests{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


def test_the_engine_is_free_for_the_next_and_keeps_the_prompt(serve: Serve) -> None:
    live = serve(reference_step=0.02)
    prompt = "word " * 100
    with RawRequest(live, prompt, headers=NAMED, stream=True, max_tokens=2000) as raw:
        raw.until(b'"content"')
        delete(live, "/mine")
    body = {"model": "reference", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    again = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=10).json()
    assert again["agentserve"]["cached_tokens"] > 50
