"""The bytes of a stream, read from raw sockets: framing, silence, failures, hang-ups."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from agentserve.daemon.workers.process import Command
from raw_http import LAST_CHUNK, RawRequest, frames

Fake = Callable[..., Command]
Serve = Callable[..., Any]


def text(content_frames: list[Any]) -> str:
    """What the frames add up to; each must hold one piece of text and nothing else."""
    pieces = [frame["choices"][0]["delta"]["content"] for frame in content_frames]
    shapes = [[{"index": 0, "delta": {"content": piece}}] for piece in pieces]
    assert [frame["choices"] for frame in content_frames] == shapes
    return "".join(pieces)


def nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(nulls(item) for item in value.values())
    return any(nulls(item) for item in value) if isinstance(value, list) else value is None


def test_a_stream_is_role_text_end_usage_and_done_in_exact_frames(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with RawRequest(live, "deltas=2 step=0.03", stream=True, stream_options={"include_usage": True}) as raw:
        response = raw.until(LAST_CHUNK)
    head = response.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 200 ")
    for line in (
        b"content-type: text/event-stream",
        b"cache-control: no-cache, no-transform",
        b"x-accel-buffering: no",
    ):
        assert line in head.split(b"\r\n")
    assert b"server:" not in head
    role, *middle, last, usage, done = frames(response)
    assert role["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}}]
    assert text(middle) == "w0 w1 "
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert last["agentserve"]["prefix_action"] == "rebuild"
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 12)
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert done == b"[DONE]"
    assert not nulls([role, *middle, last, usage])
    assert {(f["id"], f["object"], f["model"]) for f in (role, *middle, last, usage)} == {
        (role["id"], "chat.completion.chunk", "reference")
    }


def test_without_the_option_there_is_no_usage_frame(serve: Serve, fake: Fake) -> None:
    with RawRequest(serve(command=fake()), "deltas=1", stream=True) as raw:
        *_, last, done = frames(raw.until(LAST_CHUNK))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in last
    assert done == b"[DONE]"


def test_the_role_frame_does_not_wait_for_the_prefill(serve: Serve, fake: Fake) -> None:
    with RawRequest(serve(command=fake()), "prefill=60", stream=True) as raw:
        assert b'"role":"assistant"' in raw.until(b"}]}\n\n")


def test_silence_is_filled_with_empty_deltas(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), heartbeat=0.05)
    with RawRequest(live, "prefill=0.3 deltas=1", stream=True) as raw:
        role, *middle, answer, last, _done = frames(raw.until(LAST_CHUNK))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert len(middle) >= 2
    assert all(frame["choices"] == [{"index": 0, "delta": {}}] for frame in middle)
    assert text([answer]) == "w0 "
    assert last["choices"][0]["finish_reason"] == "stop"


def test_life_signs_tell_how_far_the_request_is_to_who_asks_for_it(serve: Serve) -> None:
    live = serve(heartbeat=0.05, reference_step=0.1)
    asked = {"stream": True, "max_tokens": 1, "agentserve_progress": True}
    with RawRequest(live, "word " * 300, **asked) as raw:
        role, *middle, _text, _last, _done = frames(raw.until(LAST_CHUNK))
    assert "agentserve" not in role
    signs = [frame["agentserve"]["progress"] for frame in middle if "agentserve" in frame]
    assert [frame["choices"] for frame in middle if "agentserve" in frame] == [
        [{"index": 0, "delta": {}}]
    ] * len(signs)
    done = [sign["tokens_done"] for sign in signs if sign["phase"] == "prefill"]
    assert done == sorted(done)
    assert any(0 < count < sign["tokens_total"] for count, sign in zip(done, reversed(signs), strict=False))


def test_pieces_that_wait_together_leave_together_and_nothing_is_lost(serve: Serve, fake: Fake) -> None:
    with RawRequest(serve(command=fake()), "burst=500", stream=True) as raw:
        _role, *middle, _last, _done = frames(raw.until(LAST_CHUNK))
    assert text(middle) == "".join(f"w{i} " for i in range(500))


def test_a_failure_that_a_retry_does_not_cure_is_one_error_frame_and_a_cut(serve: Serve, fake: Fake) -> None:
    with RawRequest(serve(command=fake()), "deltas=3 fail_after=2 step=0.1", stream=True) as raw:
        response = raw.to_the_end()
    _role, *middle, error = frames(response)
    assert text(middle).startswith("w0 ")
    assert error == {
        "error": {
            "message": "the engine failed while it computed this request",
            "type": "server_error",
            "param": None,
            "code": "streaming_error",
        }
    }
    assert b"finish_reason" not in response
    assert b"[DONE]" not in response
    assert not response.endswith(LAST_CHUNK)


def test_a_worker_that_dies_breaks_the_stream_off_without_a_word(serve: Serve, fake: Fake) -> None:
    with RawRequest(serve(command=fake()), "deltas=3 die_after=2 step=0.1", stream=True) as raw:
        response = raw.to_the_end()
    assert text(frames(response)[1:]).startswith("w0 ")
    assert b"error" not in response
    assert b"[DONE]" not in response
    assert not response.endswith(LAST_CHUNK)


def test_a_shutdown_breaks_streams_off_that_do_not_finish_in_time(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), drain_timeout=0.05)
    with RawRequest(live, "deltas=1 hold", stream=True) as raw:
        raw.until(b"w0 ")
        live.shut_down(drain=True)
        response = raw.to_the_end()
    assert b"error" not in response
    assert not response.endswith(LAST_CHUNK)
    live.join()


def test_a_draining_daemon_finishes_what_runs_and_refuses_what_comes(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with RawRequest(live, "deltas=20 step=0.02", stream=True) as running:
        running.until(b"w0 ")
        live.shut_down(drain=True)
        with RawRequest(live, "deltas=1", stream=True) as late:
            refused = late.until(b"}}").decode()
        response = running.until(LAST_CHUNK)
    assert refused.startswith("HTTP/1.1 503 ")
    assert "agentserve is shutting down" in refused
    assert frames(response)[-1] == b"[DONE]"
    live.join()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("orders", ["hold", "prefill=60", "deltas=9999 step=0.005"])
def test_a_client_that_hangs_up_cancels_its_request_at_once(
    serve: Serve, fake: Fake, caplog: pytest.LogCaptureFixture, stream: bool, orders: str
) -> None:
    caplog.set_level(logging.INFO)
    live = serve(command=fake())
    (worker,) = live.daemon.router.supervisors()
    with RawRequest(live, orders, stream=stream):
        live.until(lambda: worker.active == 1)
    began = time.monotonic()
    live.until(lambda: worker.active == 0)
    assert time.monotonic() - began < 1
    live.until(lambda: "cancel client_disconnected" in caplog.text)
    assert live.call(live.daemon.service.ledger.counts).cancelled == 1


def test_a_client_that_hangs_up_while_the_model_loads_never_reaches_the_worker(
    serve: Serve, fake: Fake
) -> None:
    live = serve(command=fake("--slow-load", "0.4"), ready=False)
    with RawRequest(live, "hold"):
        live.until(lambda: len(live.daemon.service.ledger.active) == 1)
    live.until(lambda: not live.daemon.service.ledger.active)
    live.until(lambda: live.daemon.startup.state.phase == "ready")
    (worker,) = live.daemon.router.supervisors()
    assert worker.active == 0
    assert live.call(live.daemon.service.ledger.counts).cancelled == 1


def test_a_client_that_does_not_read_is_given_up_and_others_are_served(
    serve: Serve, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = serve(command=fake(), slow_reader_timeout=0.2)
    with (
        RawRequest(live, "burst=3000 size=10000 hold", stream=True),
        RawRequest(live, "deltas=3", stream=True) as quick,
    ):
        assert frames(quick.until(LAST_CHUNK))[-1] == b"[DONE]"
        live.until(lambda: "cancel slow_reader" in caplog.text)
    live.until(lambda: not live.daemon.service.ledger.active)
    assert next(live.daemon.service.records.newest()).reason == "slow_reader"


def test_a_connection_serves_one_stream_after_another(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with RawRequest(live, "deltas=1", stream=True) as raw:
        raw.until(LAST_CHUNK)
        body = b'{"model":"reference","messages":[{"role":"user","content":"deltas=2"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.received = b""
        raw.socket.sendall(head.encode() + body)
        assert b"w0 w1 " in raw.until(b'"agentserve"')
