"""A worker that dies or hangs, over real sockets: who notices, who does not, and what is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from raw_http import LAST_CHUNK, RawRequest

Serve = Callable[..., Any]
# To this the mock device answers with 158 tokens, which is long.
LONG_REPLY = "text 47"
SYSTEM = {"role": "system", "content": "You are a careful agent with many rules. " * 20}


def ask(live: Any, *messages: dict[str, str]) -> httpx.Response:
    body = {"model": "reference", "messages": messages, "max_tokens": 3, "temperature": 0}
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> None:
    # As a native call that never returns: the process is there and does nothing.
    os.kill(pid, signal.SIGSTOP)


def all_accepted(live: Any) -> bool:
    return all(entry.generation.accepted for entry in live.daemon.service.ledger.active.values())


@pytest.mark.parametrize("harm", [kill, freeze])
def test_the_running_request_is_reset_and_the_queued_one_served_by_the_next_worker(
    serve: Serve, harm: Callable[[int], None]
) -> None:
    live = serve(reference_step=0.05, max_active_sessions=1, stall_timeout=1.0)
    (worker,) = live.daemon.router.supervisors()
    first = worker.facts.pid
    with RawRequest(live, LONG_REPLY, stream=True, temperature=0) as running, ThreadPoolExecutor() as pool:
        running.until(b'"content":"')
        queued = pool.submit(ask, live, {"role": "user", "content": "next"})
        live.until(lambda: worker.active == 2 and all_accepted(live))
        harm(first)
        broken = running.to_the_end()
        assert not broken.endswith(LAST_CHUNK)
        assert b"error" not in broken
        answer = queued.result(30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    assert worker.facts.pid != first
    assert not psutil.pid_exists(first)
    counts = live.call(live.daemon.service.ledger.counts)
    assert (counts.received, counts.done, counts.error) == (2, 1, 1)
    record = next(live.daemon.service.records.newest())
    # It waited for the first worker, for the start of the second one, and there.
    assert record.queued_ms / 1000 == pytest.approx(record.started_at - record.enqueued_at, abs=0.1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_holds_where_the_worker_hangs(serve: Serve, stream: bool) -> None:
    live = serve(reference_step=0.05, stall_timeout=60.0)
    (worker,) = live.daemon.router.supervisors()
    with RawRequest(live, LONG_REPLY, stream=stream, temperature=0, timeout=1.0) as running:
        live.until(lambda: bool(worker.facts.stats and worker.facts.stats.tokens_generated))
        freeze(worker.facts.pid)
        answer = running.to_the_end() if stream else running.until(b"}}")
    assert (b'"streaming_error"' if stream else b"HTTP/1.1 504 ") in answer
    live.until(lambda: not live.daemon.service.ledger.active)
    record = next(live.daemon.service.records.newest())
    assert (record.terminal_state, record.reason) == ("cancelled", "deadline")
    kill(worker.facts.pid)


def test_an_answer_that_is_not_streamed_is_503_with_the_seconds_until_the_next_worker(serve: Serve) -> None:
    live = serve(reference_step=0.05)
    (worker,) = live.daemon.router.supervisors()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(
            httpx.post,
            f"{live.url}/v1/chat/completions",
            json={
                "model": "reference",
                "messages": [{"role": "user", "content": LONG_REPLY}],
                "temperature": 0,
            },
        )
        live.until(lambda: bool(worker.facts.stats and worker.facts.stats.tokens_generated))
        kill(worker.facts.pid)
        answer = running.result(30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_died")
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_pins_survive_a_worker_that_was_killed(serve: Serve) -> None:
    live = serve()
    (worker,) = live.daemon.router.supervisors()
    made = httpx.post(
        f"{live.url}/agentserve/v1/pins", json={"name": "rules", "messages": [SYSTEM]}, timeout=30
    )
    assert made.status_code == 201
    until_on_disk(live)
    kill(worker.facts.pid)
    live.until(lambda: worker.facts.stats is None)
    answer = ask(live, SYSTEM, {"role": "user", "content": "hello"}).json()
    assert answer["agentserve"]["cached_tokens"] >= made.json()["tokens"]
    (pin,) = httpx.get(f"{live.url}/agentserve/v1/pins").json()["pins"]
    assert (pin["name"], pin["tier"], pin["hits"]) == ("rules", "pool", 1)


def until_on_disk(live: Any) -> None:
    """Waits until the worker has written its capsules, which it does when it has nothing else to do."""
    folder = Path(live.daemon.router.capsules)
    live.until(lambda: any(folder.rglob("pin-*.safetensors")))
