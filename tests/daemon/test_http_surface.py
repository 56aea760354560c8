"""Routes other than generation, and what holds for every response."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from agentserve.daemon.config import Settings
from agentserve.daemon.http.hosts import Host, allowed_hosts, parse_host
from agentserve.daemon.paths import Paths
from agentserve.daemon.store.registry import ModelStore
from agentserve.daemon.workers.process import Command

Fake = Callable[..., Command]
Put = Callable[[ModelStore, str, bytes], None]
Serve = Callable[..., Any]
CHAT = {"model": "reference", "messages": [{"role": "user", "content": "deltas=1"}]}


def test_the_root_says_that_it_runs_to_get_and_head(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    assert httpx.get(live.url).text == "agentserve is running"
    head = httpx.head(live.url)
    assert (head.status_code, head.text) == (200, "")


def test_stored_models_are_listed_without_loading_any(
    serve: Serve, fake: Fake, paths: Paths, put: Put
) -> None:
    store = ModelStore(paths.models)
    put(store, "a", b"a")
    put(store, "b:7b", b"b")
    live = serve(command=fake(), mock=False, model="a", max_context=1024, aliases={"gpt-5-mini": "b:7b"})
    listed = httpx.get(f"{live.url}/v1/models").json()
    assert listed["object"] == "list"
    assert [(m["id"], m["context_length"]) for m in listed["data"]] == [("a:latest", 4096), ("b:7b", 1024)]
    for name, canonical in (("a", "a:latest"), ("b:7b", "b:7b"), ("b%3A7b", "b:7b"), ("gpt-5-mini", "b:7b")):
        assert httpx.get(f"{live.url}/v1/models/{name}").json()["id"] == canonical
    assert [worker.load.name for worker in live.daemon.router.supervisors()] == ["a:latest"]


@pytest.mark.parametrize("name", ["nope", "org/nope", "smollm2", "", "..%2Fx"])
def test_an_unknown_model_is_404_in_the_usual_shape(
    serve: Serve, fake: Fake, paths: Paths, put: Put, name: str
) -> None:
    put(ModelStore(paths.models), "a", b"a")
    answer = httpx.get(f"{serve(command=fake(), mock=False, model='a').url}/v1/models/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert str(paths.models) not in answer.text


def test_two_models_answer_each_under_its_own_name(serve: Serve, fake: Fake, paths: Paths, put: Put) -> None:
    for name in ("a", "b"):
        put(ModelStore(paths.models), name, name.encode())
    live = serve(command=fake(), mock=False, model="a")
    for asked in ("a", "b", "a:latest", "b:latest"):
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=CHAT | {"model": asked})
        assert answer.json()["model"] == f"{asked[0]}:latest"
    pids = {worker.facts.model.name: worker.facts.pid for worker in live.daemon.router.supervisors()}
    assert set(pids) == {"a:latest", "b:latest"}
    assert len(set(pids.values())) == 2


def test_health_tells_models_queue_requests_and_memory(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    httpx.post(f"{live.url}/v1/chat/completions", json=CHAT)
    health = httpx.get(f"{live.url}/health").json()
    assert health["status"] == "healthy"
    (model,) = health["models"]
    prefix_memory, _ = model.pop("prefix_memory"), model.pop("speculation")
    assert model == {"name": "reference", "state": "ready", "device": "mock", "error": None}
    assert prefix_memory["blocks"] == {"used": 7, "cached": 5, "free": 88}
    assert (prefix_memory["tokens_reused"], prefix_memory["tokens_computed"]) == (30, 40)
    assert prefix_memory["hit_rate"] == round(30 / 70, 4)
    assert health["queue"] == {"active": 0, "queued": 0}
    assert health["requests"]["done"] == 1
    assert health["memory"]["daemon_rss_bytes"] > 10**6
    assert health["memory"]["worker_rss_bytes"] > 10**6
    for name in ("live", "liveness"):
        assert httpx.get(f"{live.url}/health/{name}").json()["alive"] is True
    for name in ("ready", "readiness"):
        answer = httpx.get(f"{live.url}/health/{name}").json()
        assert answer == {"status": "ready", "ready": True, "reasons": []}


def test_readiness_is_503_with_reasons_while_the_model_loads(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake("--slow-load", "1"), ready=False)
    live.until(lambda: live.daemon.startup.state.phase == "loading")
    answer = httpx.get(f"{live.url}/health/ready")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert answer.json()["reasons"][0].startswith("start: ")
    assert httpx.get(f"{live.url}/health/live").status_code == 200


def test_health_is_degraded_when_a_worker_has_failed(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    dying = CHAT | {"messages": [{"role": "user", "content": "die_after=0"}]}
    httpx.post(f"{live.url}/v1/chat/completions", json=dying)
    health = httpx.get(f"{live.url}/health").json()
    (model,) = health["models"]
    assert health["status"] == "degraded"
    assert "SIGKILL" in model["error"]
    assert model["prefix_memory"]["blocks"] == {"used": 0, "cached": 0, "free": 0}


def test_status_tells_all_that_a_person_asks_for(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    live.until(lambda: live.daemon.router.supervisors()[0].facts.stats is not None)
    status = httpx.get(f"{live.url}/agentserve/v1/status").json()
    assert (status["port"], status["default_model"], status["mock"]) == (live.port, "reference", True)
    assert status["startup"]["phase"] == "ready"
    (worker,) = status["workers"]
    assert (worker["state"], worker["model"]["architecture"]) == ("ready", "fake")
    assert worker["self_test"]["rows_agree"] is True
    assert (worker["blocks_used"], worker["blocks_total"], worker["compile_cache_hit"]) == (7, 100, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_route"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions/", 404, "unknown_route"),
        ("DELETE", "/health", 405, "method_not_allowed"),
    ],
)
def test_unknown_routes_and_methods_use_the_error_shape(
    serve: Serve, fake: Fake, method: str, path: str, status: int, code: str
) -> None:
    answer = httpx.request(method, serve(command=fake()).url + path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        ("my-id_1:2.3", r"my-id_1:2\.3"),
        ("a b<script>/é", "abscript"),
        ("x" * 300, "x" * 128),
        ("", r"req-[0-9a-f]{32}"),
        ("<>", r"req-[0-9a-f]{32}"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/nowhere", "/v1/models/none"])
def test_every_response_carries_the_request_id(
    serve: Serve, fake: Fake, path: str, sent: str, returned: str
) -> None:
    headers = {b"X-Request-ID": sent.encode()}
    answer = httpx.get(serve(command=fake()).url + path, headers=headers)
    assert re.fullmatch(returned, answer.headers["x-request-id"])


def test_bad_requests_and_refused_hosts_carry_an_id_too(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    bad = httpx.post(f"{live.url}/v1/chat/completions", content=b"{", headers={"X-Request-ID": "mine"})
    refused = httpx.get(live.url, headers={"Host": "evil.example", "X-Request-ID": "mine"})
    assert [bad.headers["x-request-id"], refused.headers["x-request-id"]] == ["mine", "mine"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", ""]
)
def test_a_host_that_is_not_allowed_gets_421_in_plain_text(serve: Serve, fake: Fake, host: str) -> None:
    answer = httpx.get(f"{serve(command=fake()).url}/v1/models", headers={"Host": host})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "text/plain"
    assert "allowed_hosts" in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]", "[::1]:11435", "box", "box:9", "pi:8"]
)
def test_loopback_and_configured_hosts_are_allowed(serve: Serve, fake: Fake, host: str) -> None:
    live = serve(command=fake(), allowed_hosts=("box", "pi:8"))
    assert httpx.get(live.url, headers={"Host": host}).status_code == 200


def test_a_host_with_a_port_in_the_setting_is_allowed_with_that_port_alone() -> None:
    allowed = allowed_hosts(Settings(allowed_hosts=("pi:8", "[fe80::1]:9")))
    assert {Host("pi", "8"), Host("fe80::1", "9"), Host("localhost", None)} <= allowed
    assert Host("pi", None) not in allowed


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Box", Host("box", None)),
        ("box:80", Host("box", "80")),
        ("[::1]", Host("::1", None)),
        ("[::1]:80", Host("::1", "80")),
        ("::1", Host("::1", None)),
    ],
)
def test_hosts_are_read_with_and_without_port(text: str, host: Host) -> None:
    assert parse_host(text) == host


def test_a_web_page_must_declare_json_and_a_command_line_need_not(serve: Serve, fake: Fake) -> None:
    url = f"{serve(command=fake()).url}/v1/chat/completions"
    content = json.dumps(CHAT).encode()
    plain = {"Content-Type": "text/plain"}
    page = {"Origin": "https://evil.example"}
    assert httpx.post(url, content=content, headers=plain).status_code == 200
    assert httpx.post(url, content=content).status_code == 200
    declared = {"Content-Type": "application/json; charset=utf-8"}
    assert httpx.post(url, content=content, headers=page | declared).status_code == 200
    refused = httpx.post(url, content=content, headers=page | plain)
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
    preflight = httpx.options(url, headers=page | {"Access-Control-Request-Method": "POST"})
    assert "access-control-allow-origin" not in preflight.headers


def test_a_web_page_can_not_shut_the_daemon_down(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    url = f"{live.url}/agentserve/v1/shutdown"
    refused = httpx.post(
        url, content=b"{}", headers={"Origin": "https://evil.example", "Content-Type": "text/plain"}
    )
    assert refused.status_code == 415
    assert httpx.get(f"{live.url}/health/ready").status_code == 200


@pytest.mark.parametrize("key", [{}, {"Authorization": "Bearer whatever"}, {"x-api-key": "x"}])
def test_any_key_or_none_is_accepted(serve: Serve, fake: Fake, key: dict[str, str]) -> None:
    assert httpx.get(f"{serve(command=fake()).url}/v1/models", headers=key).status_code == 200


def test_a_compressed_body_is_refused_by_name(serve: Serve, fake: Fake) -> None:
    url = f"{serve(command=fake()).url}/v1/chat/completions"
    answer = httpx.post(url, content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert "compressed" in answer.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b'{"drain": "maybe"}'])
def test_a_wrong_shutdown_request_is_400_and_stops_nothing(serve: Serve, fake: Fake, content: bytes) -> None:
    live = serve(command=fake())
    assert httpx.post(f"{live.url}/agentserve/v1/shutdown", content=content).status_code == 400
    assert httpx.get(f"{live.url}/health/ready").status_code == 200


def test_a_bug_is_500_without_internals_and_with_the_request_id(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: Any) -> None:
        raise ZeroDivisionError("secret /path")

    live = serve(command=fake())
    monkeypatch.setattr("agentserve.daemon.openai.chat_schema.check_body", broken)
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=CHAT, headers={"X-Request-ID": "bug-1"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "bug-1" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] == "bug-1"
    live.until(lambda: "ZeroDivisionError" in caplog.text)
