"""Chat completions over real sockets, with the official SDK and with plain requests."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from agentserve.daemon.workers.process import Command

Fake = Callable[..., Command]
Serve = Callable[..., Any]


def sdk(live: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="anything", max_retries=0, timeout=10)


def body(orders: str = "deltas=2", **fields: Any) -> dict[str, Any]:
    return {"model": "reference", "messages": [{"role": "user", "content": orders}], **fields}


def post(live: Any, content: Any, **headers: str) -> httpx.Response:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return httpx.post(f"{live.url}/v1/chat/completions", content=data, headers=headers, timeout=10)


def test_the_reference_model_gives_the_same_text_streamed_and_whole(serve: Serve) -> None:
    live = serve()
    asked = body("tell me more", max_tokens=40, temperature=1.0, seed=11)
    with sdk(live) as client:
        whole = client.chat.completions.create(**asked).choices[0]
        chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (text, chunks[-1].choices[0].finish_reason) == (whole.message.content, whole.finish_reason)


def test_headers_name_the_device_the_tokens_and_what_was_reused(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    headers = post(live, body("deltas=1")).headers
    named = {name: value for name, value in headers.items() if name.startswith("x-agentserve-")}
    assert named == {
        "x-agentserve-device": "mock",
        "x-agentserve-routed-device": "mock",
        "x-agentserve-execution-device": "mock",
        "x-agentserve-route-reason": "single_engine_runtime",
        "x-agentserve-token-count": "1",
        "x-agentserve-queue-position": "0",
        "x-agentserve-prefix-action": "rebuild",
        "x-agentserve-cached-tokens": "0",
    }


def test_the_answer_carries_the_record_of_its_request(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    record = post(live, body("deltas=3")).json()["agentserve"]
    assert record == {
        "cached_tokens": 4,
        "new_prefill_tokens": 6,
        "queued_ms": 1.0,
        "tokenize_ms": 1.0,
        "prefill_ms": 10.0,
        "first_delta_ms": 20.0,
        "decode_ms": 100.0,
        "decode_tok_per_s": 20.0,
        "prefix_action": "rebuild",
        "cache_miss_reason": "cold",
        "draft_tokens": 0,
        "spec_attempts": 0,
        "spec_accepts": 0,
        "spec_full": 0,
        "accept_length": 0.0,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_is_400_with_both_numbers(serve: Serve, fake: Fake, stream: bool) -> None:
    live = serve(command=fake())
    answer = post(live, body("reject=context_length_exceeded", stream=stream))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "error": {
            "message": "This model's maximum context length is 4096 tokens. "
            "However, your messages resulted in 5000 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
            "n_prompt_tokens": 5000,
            "n_ctx": 4096,
        }
    }


def test_a_refusal_of_the_worker_keeps_its_code_and_text(serve: Serve, fake: Fake) -> None:
    answer = post(serve(command=fake()), body("reject=template_error"))
    assert answer.status_code == 400
    error = {
        "message": "refused",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "template_error",
    }
    assert answer.json() == {"error": error}


BAD_BODIES = [
    (b'{"model": "reference"', 400, "invalid_json", None, r"The request body is not valid JSON: .*"),
    (
        b'{"model": "reference", "messages": []}',
        400,
        "invalid_value",
        "messages",
        r"messages must not be empty",
    ),
    (b'{"messages": []}', 400, "missing_required_parameter", "model", r"model is required"),
    (
        b'{"model": "reference", "messages": [{"role": "x"}]}',
        400,
        "invalid_value",
        "messages[0].role",
        r"messages\[0\].role: unknown role 'x'; expected one of .*",
    ),
    (
        b'{"model": "nope", "messages": [{"role": "user", "content": "x"}]}',
        404,
        "model_not_found",
        "model",
        r"There is no model 'nope': agentserve runs with mock and serves only 'reference'",
    ),
]


@pytest.mark.parametrize(("content", "status", "code", "param", "message"), BAD_BODIES)
def test_bad_input_has_its_status_code_and_text(
    serve: Serve, fake: Fake, content: bytes, status: int, code: str, param: str | None, message: str
) -> None:
    answer = post(serve(command=fake()), content)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert re.fullmatch(message, error["message"])
    assert set(error) == {"message", "type", "param", "code"}


def test_a_body_over_the_cap_is_413_announced_or_not(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), max_body=2000)
    content = json.dumps(body("x" * 3000)).encode()
    chunked = httpx.post(f"{live.url}/v1/chat/completions", content=iter([content[:1500], content[1500:]]))
    for answer in (post(live, content), chunked):
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert "larger than 2000 bytes" in answer.json()["error"]["message"]
    assert post(live, body("deltas=1")).status_code == 200


def test_a_failure_of_the_engine_is_500_without_internals(serve: Serve, fake: Fake) -> None:
    answer = post(serve(command=fake()), body("deltas=2 fail_after=1"))
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "the engine failed while it computed this request",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


def test_a_worker_that_dies_is_503_and_the_next_request_gets_another(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    answer = post(live, body("deltas=2 die_after=1"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "worker_died"
    assert post(live, body("deltas=1")).json()["choices"][0]["message"]["content"] == "w0 "


def test_kill_9_of_the_real_worker_fails_its_request_and_the_daemon_lives(serve: Serve) -> None:
    live = serve(reference_step=0.02)
    (worker,) = live.daemon.router.supervisors()
    with sdk(live) as client:
        # A prompt that takes a while, because how long the answer becomes is the model's choice.
        asked = body("go " * 300, temperature=0)
        stream = client.chat.completions.create(**asked | {"stream": True})
        next(iter(stream))
        # One that has not started goes to the next worker.
        entries = live.daemon.service.ledger.active
        live.until(lambda: all(entry.generation.started for entry in entries.values()))
        os.kill(worker.facts.pid, signal.SIGKILL)
        with pytest.raises(openai.APIConnectionError):
            list(stream)
        again = client.chat.completions.create(**body("go", max_tokens=3))
    assert again.usage is not None
    counts = live.call(live.daemon.service.ledger.counts)
    assert (counts.error, counts.done, counts.active) == (1, 1, 0)


def test_a_model_that_can_not_be_loaded_is_503_with_its_reason(serve: Serve, fake: Fake) -> None:
    commands = [fake(), fake("--fail-load", "corrupt_model")]
    live = serve(command=lambda descriptor: commands[0](descriptor))
    post(live, body("deltas=2 die_after=1"))
    commands.pop(0)
    answer = post(live, body(stream=True))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "corrupt_model"
    assert "can't be loaded: the model file is cut off" in answer.json()["error"]["message"]


def test_a_full_queue_is_429_with_retry_after(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), max_queue_depth=0)
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=body("hold", stream=True)) as running:
        assert running.status_code == 200
        refused = post(live, body())
    # The fake worker tells of no rate.
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "queue_full"
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_terminal_states_add_up_to_the_requests_received(
    serve: Serve, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = serve(command=fake())
    for orders in ("deltas=2", "reject=x", "deltas=1 fail_after=0", "deltas=1 die_after=1"):
        post(live, body(orders))
    post(live, b"{")
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=body("hold", stream=True)):
        pass
    live.until(lambda: not live.daemon.service.ledger.active)
    counts = live.call(live.daemon.service.ledger.counts)
    ends = (counts.done, counts.rejected, counts.error, counts.cancelled)
    assert ends == (1, 2, 2, 1)
    assert counts.received == 6
    assert (counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens) == (10, 4, 2)
    live.until(lambda: "cancel client_disconnected" in caplog.text)
