"""What the examples in `/openapi.json` name, made in a daemon with the reference model."""

from __future__ import annotations

import httpx


def furnish(client: httpx.Client) -> None:
    """Makes what the examples of the document name: a request, its session, and a pin."""
    body = {
        "model": "reference",
        "messages": [{"role": "user", "content": "Follow the rules of this repository. " * 8}],
        "max_tokens": 2,
        "agentserve_session_id": "work",
    }
    asked = client.post("/v1/chat/completions", json=body, headers={"X-Request-ID": "my-request"})
    pinned = client.post("/agentserve/v1/pins", json={"name": "rules", "from": "my-request"})
    assert asked.is_success, asked.text
    assert pinned.is_success, pinned.text
