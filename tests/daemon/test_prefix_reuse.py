"""Prefix memory seen by a client of the real worker: it needs no field, id or setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

SYSTEM = {"role": "system", "content": "You are a careful agent with many rules. " * 20}
Serve = Callable[..., Any]


def ask(live: Any, *turns: str, **fields: Any) -> httpx.Response:
    messages = [SYSTEM, *({"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns))]
    body = {"model": "reference", "messages": messages, "max_tokens": 5, "temperature": 0, **fields}
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer


def test_the_second_turn_computes_only_what_is_new(serve: Serve) -> None:
    live = serve()
    first = ask(live, "one").json()
    second = ask(live, "one", first["choices"][0]["message"]["content"], "two")
    usage, block = second.json()["usage"], second.json()["agentserve"]
    assert block["prefix_action"] == "append"
    assert usage["prompt_tokens_details"]["cached_tokens"] == block["cached_tokens"]
    assert block["cached_tokens"] + block["new_prefill_tokens"] == usage["prompt_tokens"]
    assert block["new_prefill_tokens"] < 100 < block["cached_tokens"]
    assert second.headers["X-AgentServe-Prefix-Action"] == "append"
    assert second.headers["X-AgentServe-Cached-Tokens"] == str(block["cached_tokens"])


def test_a_salt_keeps_others_out(serve: Serve) -> None:
    live = serve()
    ask(live, "one", cache_salt="alice")
    other = ask(live, "one", cache_salt="bob").json()["agentserve"]
    assert (other["prefix_action"], other["cache_miss_reason"]) == ("rebuild", "cold")


def test_an_edit_says_where_it_differs(serve: Serve) -> None:
    live = serve()
    ask(live, "the first question")
    block = ask(live, "the second question").json()["agentserve"]
    assert block["prefix_action"] == "truncate"
    assert block["first_difference"] > block["cached_tokens"] > 100


def test_a_named_session_is_reported_by_its_name(serve: Serve) -> None:
    live = serve()
    assert ask(live, "one", agentserve_session_id="mine").json()["agentserve"]["session_id"] == "mine"


def test_status_and_health_count_what_was_reused_and_computed(serve: Serve) -> None:
    live = serve()
    for _ in range(2):
        last = ask(live, "one").json()["agentserve"]

    def worker() -> dict[str, Any]:
        return httpx.get(f"{live.url}/agentserve/v1/status").json()["workers"][0]

    live.until(lambda: live.daemon.service.snapshot().workers[0].tokens_reused > 0)
    assert worker()["tokens_reused"] == last["cached_tokens"]
    assert worker()["sessions"] == 1
    memory = httpx.get(f"{live.url}/health").json()["models"][0]["prefix_memory"]
    assert memory["tokens_reused"] == last["cached_tokens"]
    assert memory["tokens_computed"] == worker()["tokens_prefilled"]
    assert memory["blocks"]["cached"] > 0
    assert 0.4 < memory["hit_rate"] < 0.5
