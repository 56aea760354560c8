"""The setting that drops headers of clients, seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Serve = Callable[..., Any]
HEADER = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=cli;"


def prompt_tokens(live: Any, system: Any) -> int:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
    body = {"model": "reference", "messages": messages, "max_tokens": 1}
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens"])


@pytest.mark.parametrize("strip", [True, False])
def test_headers_are_dropped_unless_that_is_switched_off(serve: Serve, strip: bool) -> None:
    live = serve(strip_decorations=strip)
    plain = prompt_tokens(live, "Be brief.")
    parts = [{"type": "text", "text": text} for text in (HEADER, "Be brief.")]
    for system in (f"{HEADER}\nBe brief.", parts):
        assert (prompt_tokens(live, system) == plain) is strip
