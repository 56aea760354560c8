"""Pins over HTTP, with the real worker of the reference model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

SYSTEM = {"role": "system", "content": "You are a careful agent with many rules. " * 20}
Serve = Callable[..., Any]


def chat(live: Any, text: str, **fields: Any) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": text}]
    body = {"model": "reference", "messages": messages, "max_tokens": 5, "temperature": 0, **fields}
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def make(live: Any, **body: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/agentserve/v1/pins", json=body, timeout=30)


def pins(live: Any, **query: str) -> dict[str, Any]:
    return httpx.get(f"{live.url}/agentserve/v1/pins", params=query).json()


def test_a_pin_is_made_listed_shown_used_and_removed(serve: Serve) -> None:
    live = serve()
    made = make(live, name="rules", messages=[SYSTEM])
    assert made.status_code == 201
    pin = made.json()
    assert (pin["name"], pin["model"], pin["tier"], pin["replaced"]) == ("rules", "reference", "pool", False)
    assert pin["tokens"] % 32 == 0
    assert pin["tokens"] >= 800
    assert chat(live, "one")["agentserve"]["cached_tokens"] >= pin["tokens"]
    (listed,) = pins(live)["pins"]
    assert (listed["hits"], listed["bytes"]) == (1, pin["bytes"])
    shown = httpx.get(f"{live.url}/agentserve/v1/pins/rules").json()
    assert shown["name"] == "rules"
    gone = httpx.delete(f"{live.url}/agentserve/v1/pins/rules")
    assert (gone.status_code, gone.json()["removed"]) == (200, True)
    assert pins(live)["pins"] == []
    missing = httpx.delete(f"{live.url}/agentserve/v1/pins/rules")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "pin_not_found")


def test_without_a_source_the_stable_prefix_of_the_last_request_is_pinned(serve: Serve) -> None:
    live = serve()
    nothing = make(live, name="rules")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "nothing_to_pin")
    chat(live, "one")
    pin = make(live, name="rules").json()
    assert len(SYSTEM["content"]) // 32 * 32 <= pin["tokens"]
    assert pin["cached_tokens"] >= pin["tokens"] // 2


@pytest.mark.parametrize("kind", ["id", "request_id"])
def test_the_prompt_of_a_request_is_pinned_by_either_of_its_ids(serve: Serve, kind: str) -> None:
    live = serve()
    answer = chat(live, "one question " * 10)
    (record,) = httpx.get(f"{live.url}/agentserve/v1/requests").json()["requests"]
    pin = make(live, name="mine", **{"from": record[kind]}).json()
    assert pin["tokens"] == answer["usage"]["prompt_tokens"] // 32 * 32


def test_a_request_whose_prompt_is_not_known_can_not_be_pinned(serve: Serve) -> None:
    refused = make(serve(), name="mine", **{"from": "chatcmpl-nobody"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "request_not_found")


def test_pins_come_back_after_a_restart(serve: Serve) -> None:
    first = serve()
    make(first, name="rules", messages=[SYSTEM])
    said = chat(first, "one")
    first.shut_down()
    first.join()
    second = serve()
    (pin,) = pins(second)["pins"]
    assert (pin["name"], pin["tier"], pin["on_disk"]) == ("rules", "disk", True)
    again = chat(second, "one")
    assert again["agentserve"]["prefix_action"] == "restore"
    assert again["choices"] == said["choices"]
    assert pins(second)["pins"][0]["tier"] == "pool"


def test_a_killed_worker_leaves_its_pins(serve: Serve) -> None:
    live = serve()
    make(live, name="rules", messages=[SYSTEM])
    worker = live.daemon.router.supervisors()[0]
    live.until(lambda: pins_on_disk(live))
    live.call(worker.kill)
    assert chat(live, "one")["agentserve"]["prefix_action"] == "restore"


def pins_on_disk(live: Any) -> bool:
    return any(live.daemon.router.capsules.rglob("pin-*.safetensors"))


def test_over_budget_says_how_many_bytes_were_wanted_and_free(serve: Serve) -> None:
    live = serve(capsule_budget=20_000)
    refused = make(live, name="rules", messages=[SYSTEM])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "capsule_over_budget")
    assert error["wanted_bytes"] > error["free_bytes"] == 20_000


def test_no_budget_refuses_with_400(serve: Serve) -> None:
    refused = make(serve(capsule_budget=0), name="rules", messages=[SYSTEM])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "capsules_disabled")


def test_a_salt_keeps_pins_apart_and_is_not_told(serve: Serve) -> None:
    live = serve()
    make(live, name="rules", messages=[SYSTEM], salt="secret")
    assert chat(live, "one")["agentserve"]["cached_tokens"] == 0
    assert chat(live, "one", cache_salt="secret")["agentserve"]["cached_tokens"] >= 800
    assert httpx.get(f"{live.url}/agentserve/v1/pins/rules").status_code == 404
    listed = httpx.get(f"{live.url}/agentserve/v1/pins")
    assert listed.json()["pins"][0]["salted"] is True
    assert "secret" not in listed.text


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"name": "a/b", "text": "x" * 99}, "invalid_pin_name", "name"),
        ({"name": "a", "text": "short"}, "pin_too_short", "tokens"),
        ({"name": "a", "text": "x", "from": "y"}, "invalid_value", "from"),
        ({"name": "a", "ttl": 0}, "invalid_value", "ttl"),
        ({"name": "a", "tokens": "many"}, "invalid_json", None),
        ({"text": "x"}, "invalid_json", None),
        ({"name": "a", "messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ],
)
def test_a_wrong_wish_is_refused_by_name(serve: Serve, body: dict[str, Any], code: str, param: str) -> None:
    refused = make(serve(), **body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, code, param)
