"""Pins that chat requests ask for, over HTTP, with the real worker of the reference model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

SYSTEM = {"role": "system", "content": "You are a careful agent with many rules. " * 20}
Serve = Callable[..., Any]


def post(live: Any, text: str, **fields: Any) -> httpx.Response:
    messages = [SYSTEM, {"role": "user", "content": text}]
    body = {"model": "reference", "messages": messages, "max_tokens": 5, "temperature": 0, **fields}
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)


def block(live: Any, text: str, **fields: Any) -> dict[str, Any]:
    answer = post(live, text, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["agentserve"]


def pins(live: Any) -> list[dict[str, Any]]:
    return httpx.get(f"{live.url}/agentserve/v1/pins").json()["pins"]


def test_the_first_tokens_or_all_of_a_prompt_are_pinned(serve: Serve) -> None:
    live = serve()
    part = block(live, "one", agentserve_pin_prefix=100)
    assert part["pinned_tokens"] == 96
    whole = post(live, "two", agentserve_pin_prefix=True).json()
    assert whole["agentserve"]["pinned_tokens"] == whole["usage"]["prompt_tokens"] // 32 * 32
    assert {pin["name"] for pin in pins(live)} == {part["pin_name"], whole["agentserve"]["pin_name"]}


def test_a_stream_tells_of_its_pin_in_the_last_frame(serve: Serve) -> None:
    live = serve()
    lines = post(live, "one", agentserve_pin_prefix=64, stream=True).text.splitlines()
    (told,) = [line for line in lines if '"pinned_tokens":64' in line]
    assert '"finish_reason":"length"' in told


def test_a_wrong_wish_is_refused(serve: Serve) -> None:
    refused = post(serve(), "one", agentserve_pin_prefix=-1)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (
        400,
        "invalid_value",
        "agentserve_pin_prefix",
    )


def test_a_prompt_that_is_too_short_is_answered(serve: Serve) -> None:
    assert block(serve(), "one", agentserve_pin_prefix=31)["pin_skipped"] == "short"


@pytest.mark.parametrize("stream", [False, True])
def test_over_budget_is_refused_before_the_stream_starts(serve: Serve, stream: bool) -> None:
    live = serve(capsule_budget=20_000)
    refused = post(live, "one", agentserve_pin_prefix=True, stream=stream)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "capsule_over_budget")
    assert error["wanted_bytes"] > error["free_bytes"] == 20_000
    assert str(20_000) in error["message"].replace(",", "")
    assert httpx.get(f"{live.url}/agentserve/v1/status").json()["requests"]["rejected"] == 1
    assert pins(live) == []


def test_best_effort_goes_on_without_the_pin(serve: Serve) -> None:
    live = serve(capsule_budget=20_000)
    told = block(live, "one", agentserve_pin_prefix=True, agentserve_pin_best_effort=True)
    assert told["pin_rejected"] == "capsule_over_budget"


def test_no_budget_refuses_with_400(serve: Serve) -> None:
    refused = post(serve(capsule_budget=0), "one", agentserve_pin_prefix=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "capsules_disabled")


def test_bytes_of_each_tier_are_reported(serve: Serve) -> None:
    live = serve(capsule_budget=1_000_000, capsule_disk=50_000_000)
    block(live, "one", agentserve_pin_prefix=True)
    (pin,) = pins(live)
    live.until(lambda: live.daemon.service.snapshot().workers[0].tiers.disk > pin["bytes"])
    tiers = httpx.get(f"{live.url}/health").json()["models"][0]["prefix_memory"]["tiers"]
    assert tiers["pinned"] == {"used_bytes": pin["bytes"], "budget_bytes": 1_000_000}
    assert pin["bytes"] <= tiers["pool"]["used_bytes"] <= tiers["pool"]["budget_bytes"]
    assert pin["bytes"] < tiers["disk"]["used_bytes"] <= tiers["disk"]["budget_bytes"] == 50_000_000
    shown = httpx.get(f"{live.url}/agentserve/v1/status").json()["workers"][0]["tiers"]
    assert shown["pinned"] == pin["bytes"]
