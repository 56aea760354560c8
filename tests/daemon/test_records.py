"""One record for each request, whatever became of it, in every place where records are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentserve.daemon.paths import Paths
from agentserve.daemon.records.log import RecordFile
from agentserve.daemon.workers.process import Command
from raw_http import LAST_CHUNK, RawRequest

Fake = Callable[..., Command]
Serve = Callable[..., Any]
SECRET = "the-words-of-the-prompt"


def post(live: Any, orders: str, **options: Any) -> httpx.Response:
    body = {
        "model": "reference",
        "messages": [{"role": "user", "content": orders}],
        **options.pop("fields", {}),
    }
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, **options)


def records(live: Any, **query: Any) -> list[dict[str, Any]]:
    live.until(lambda: not live.daemon.service.ledger.active)
    answer = httpx.get(f"{live.url}/agentserve/v1/requests", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


def test_a_good_request_leaves_every_field(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    headers = {"User-Agent": "an-agent/1.0", "X-Request-ID": "mine-1"}
    answer = post(live, "deltas=3", headers=headers).json()
    (record,) = records(live)
    times = [record.pop(f"{name}_at") for name in ("enqueued", "started", "first_token", "finished")]
    assert times == sorted(times)
    first_delta_ms = record.pop("first_delta_ms")
    assert 0 < first_delta_ms <= (times[-1] - times[0]) * 1000 + 0.01
    assert record.pop("load_ms") >= 0
    assert record == {
        "number": 1,
        "id": answer["id"],
        "request_id": "mine-1",
        "route": "/v1/chat/completions",
        "client": "an-agent/1.0",
        "model": "reference",
        "device": "mock",
        "stream": False,
        "state": "done",
        "terminal_state": "done",
        "status": 200,
        "finish_reason": "stop",
        "reason": None,
        "error": None,
        "session_id": None,
        "queue_position": 0,
        "queued_ms": 1.0,
        "tokenize_ms": 1.0,
        "prefill_ms": 10.0,
        "decode_ms": 100.0,
        "decode_tok_per_s": 20.0,
        "prefix_action": "rebuild",
        "cache_miss_reason": "cold",
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "new_prefill_tokens": 1,
        "completion_tokens": 3,
        "draft_tokens": 0,
        "spec_attempts": 0,
        "spec_accepts": 0,
        "accept_length": 0.0,
        "drafts": {
            "steps": 0,
            "tokens": 0,
            "emitted": 0,
            "seconds": 0.0,
            "drafters": [],
            "drafted_at": [],
            "accepted_at": [],
        },
    }


@pytest.mark.parametrize(
    ("orders", "state", "status", "reason"),
    [
        ("reject=template_error", "rejected", 400, "template_error"),
        ("fail_after=0", "error", 500, "internal_error"),
        ("die_after=0", "error", 503, "worker_died"),
    ],
)
def test_a_request_that_failed_says_why(
    serve: Serve, fake: Fake, orders: str, state: str, status: int, reason: str
) -> None:
    live = serve(command=fake())
    post(live, orders)
    (record,) = records(live)
    assert (record["terminal_state"], record["status"], record["reason"]) == (state, status, reason)
    assert record["finished_at"] >= record["enqueued_at"]
    assert record["decode_ms"] is None


def test_a_body_that_is_no_request_is_a_record_too(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    httpx.post(f"{live.url}/v1/chat/completions", content=b"{")
    (record,) = records(live)
    assert (record["terminal_state"], record["reason"], record["model"]) == ("rejected", "invalid_json", "")


def test_a_client_that_hung_up_keeps_what_was_known_of_it(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with RawRequest(live, "deltas=2 hold", stream=True) as raw:
        raw.until(b"w1 ")
    (record,) = records(live)
    assert (record["terminal_state"], record["reason"]) == ("cancelled", "client_disconnected")
    assert (record["status"], record["finish_reason"]) == (200, None)
    assert (record["prefix_action"], record["new_prefill_tokens"], record["completion_tokens"]) == (
        "rebuild",
        1,
        2,
    )
    assert record["decode_ms"] > 0


def test_records_are_found_by_state_client_and_session_and_come_in_pages(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    for i in range(5):
        post(live, "deltas=1", headers={"User-Agent": "Even/1" if i % 2 == 0 else "odd"})
    post(live, "reject=x", fields={"agentserve_session_id": "s-1"})
    assert [one["number"] for one in records(live)] == [6, 5, 4, 3, 2, 1]
    assert [one["number"] for one in records(live, state="rejected")] == [6]
    assert [one["number"] for one in records(live, client="even")] == [5, 3, 1]
    assert [one["number"] for one in records(live, session="s-1")] == [6]
    page = httpx.get(f"{live.url}/agentserve/v1/requests", params={"limit": 4}).json()
    assert ([one["number"] for one in page["requests"]], page["before"]) == ([6, 5, 4, 3], 3)
    rest = httpx.get(f"{live.url}/agentserve/v1/requests", params={"before": page["before"]}).json()
    assert ([one["number"] for one in rest["requests"]], rest["before"]) == ([2, 1], None)


def test_a_running_request_is_listed_with_its_state(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    with RawRequest(live, "deltas=1 hold", headers="X-Request-ID: r-1\r\n", stream=True) as raw:
        raw.until(b"w0 ")
        record = httpx.get(f"{live.url}/agentserve/v1/requests/r-1").json()
        assert (record["state"], record["terminal_state"], record["finished_at"]) == ("decode", None, None)
    (record,) = records(live)
    assert record["state"] == "cancelled"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("state=nope", "state"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("before=-1", "before"),
        ("before=" + "9" * 5000, "before"),
    ],
)
def test_a_wrong_filter_is_400_and_named(serve: Serve, fake: Fake, query: str, param: str) -> None:
    live = serve(command=fake())
    answer = httpx.get(f"{live.url}/agentserve/v1/requests?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_unknown_request_is_404(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    for call in (httpx.get, httpx.delete):
        answer = call(f"{live.url}/agentserve/v1/requests/nope")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")


def test_the_file_has_the_same_records_as_lines(serve: Serve, fake: Fake, paths: Paths) -> None:
    live = serve(command=fake())
    post(live, "deltas=1")
    post(live, "reject=x")
    told = records(live)
    written = [json.loads(line) for line in paths.request_log.read_text().splitlines()]
    assert written == list(reversed(told))
    assert paths.request_log.stat().st_mode & 0o777 == 0o600


def test_the_log_has_a_line_for_people(serve: Serve, fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    live = serve(command=fake())
    post(live, "deltas=3", headers={"X-Request-ID": "mine", "User-Agent": "agent/2"})
    assert len(records(live)) == 1
    line = next(r.getMessage() for r in caplog.records if r.name == "agentserve.requests")
    assert line.startswith("mine done: reference, agent/2, 0.")
    assert line.endswith(
        " s, rebuild 0 cached, 1 in, 3 out, stop, queue 0.001 s, prefill 0.010 s, decode 0.100 s, 20.0 tokens/s"
    )


def test_what_clients_invent_is_short_and_fit_for_a_terminal(serve: Serve, fake: Fake, paths: Paths) -> None:
    live = serve(command=fake())
    invented = "\x1b[31m\nred " + "x" * 100_000
    headers = {"User-Agent": "agent" * 1000, "X-Request-ID": "id" * 1000}
    post(live, "deltas=1", fields={"model": invented}, headers=headers)
    post(live, "deltas=1", fields={"agentserve_session_id": invented})
    for record in records(live):
        assert all(len(str(value)) <= 200 for value in record.values())
        assert all(value.isprintable() for value in record.values() if isinstance(value, str))
    assert len(paths.request_log.read_bytes()) < 6000


def everything_written(paths: Paths, caplog: pytest.LogCaptureFixture) -> str:
    return paths.request_log.read_text() + caplog.text


def test_neither_prompts_nor_answers_are_logged(
    serve: Serve, fake: Fake, paths: Paths, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    live = serve(command=fake())
    for orders in ("deltas=2", "reject=x", "fail_after=1 deltas=1"):
        post(live, f"{orders} {SECRET}")
    httpx.post(f"{live.url}/v1/chat/completions", content=f'{{"messages": "{SECRET}"'.encode())
    httpx.post(f"{live.url}/v1/chat/completions", json={"model": "reference", "messages": SECRET})
    assert len(records(live)) == 5
    written = everything_written(paths, caplog)
    assert SECRET not in written
    assert "w0 w1" not in written


@pytest.mark.parametrize("stream", [True, False])
def test_log_content_writes_both_into_the_file_alone(
    serve: Serve, fake: Fake, paths: Paths, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    live = serve(command=fake(), log_content=True)
    with RawRequest(live, f"deltas=2 {SECRET}", stream=stream) as raw:
        raw.until(LAST_CHUNK if stream else b"finish_reason")
    assert "content" not in records(live)[0]
    content = json.loads(paths.request_log.read_text())["content"]
    assert SECRET in content["request"]
    assert content["answer"] == "w0 w1 "
    assert SECRET not in caplog.text


def test_the_file_is_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "log" / "requests.jsonl", limit=10, kept=2)
    for text in ("one", "two", "three", "four", "five", "six", "seven"):
        file.append(f"{text}\n".encode())
    kept = {path.name: path.read_text() for path in file.path.parent.iterdir()}
    assert kept == {
        "requests.jsonl": "six\nseven\n",
        "requests.jsonl.1": "four\nfive\n",
        "requests.jsonl.2": "three\n",
    }


def test_a_file_that_can_not_be_written_costs_no_request_and_is_told_once(
    serve: Serve, fake: Fake, paths: Paths, caplog: pytest.LogCaptureFixture
) -> None:
    paths.request_log.mkdir(parents=True)
    live = serve(command=fake())
    assert [post(live, "deltas=1").status_code for _ in range(2)] == [200, 200]
    assert len(records(live)) == 2
    assert caplog.text.count("records are lost") == 1
