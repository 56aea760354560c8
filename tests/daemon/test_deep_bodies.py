"""Bodies nested as deeply as the decoder just takes them: what comes after it must not trip over them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import httpx

Serve = Callable[..., Any]
CHAT = '"model": "reference", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]'
CALL = '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": %s}}]}'
FORMS = {
    "tools": ("/v1/chat/completions", f'{{{CHAT}, "tools": [{{"function": {{"name": "f", "parameters": %s}}}}]}}'),
    "calls": ("/v1/chat/completions", f'{{"model": "reference", "messages": [{CALL}]}}'),
    "template options": ("/v1/chat/completions", f'{{{CHAT}, "chat_template_kwargs": %s}}'),
    "guided_json": ("/v1/chat/completions", f'{{{CHAT}, "guided_json": %s}}'),
    "response_format": ("/v1/chat/completions", f'{{{CHAT}, "response_format": {{"type": "json_object", "schema": %s}}}}'),
    "a pin's tools": ("/agentserve/v1/pins", f'{{"name": "p", {CHAT}, "tools": [%s]}}'),
    "a pin's calls": ("/agentserve/v1/pins", f'{{"name": "p", "messages": [{CALL}]}}'),
    "an unknown field": ("/agentserve/v1/pins", '{"name": "p", "unknown": %s}'),
}  # fmt: skip
DEEPEST = 20_000
BELOW = 25


def test_no_depth_is_an_error_of_the_server(serve: Serve) -> None:
    with httpx.Client(base_url=serve().url, timeout=30) as client:
        for path, body in FORMS.values():
            check_depths(client, path, body)


def check_depths(client: httpx.Client, path: str, body: str) -> None:
    def is_refused(depth: int) -> bool:
        answer = client.post(path, content=body % ('{"a":' * depth + "1" + "}" * depth))
        assert answer.status_code < 500, f"{body} with {depth} levels: {answer.text}"
        return answer.status_code == 400 and "nested too deeply" in answer.text

    first = bisect_left(range(DEEPEST), True, key=is_refused)
    assert is_refused(DEEPEST)
    assert not any(map(is_refused, range(max(first - BELOW, 1), first)))
