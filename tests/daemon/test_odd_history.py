"""Calls that come back with arguments no sane client would send: an answer or a 400, and both routes agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from scripted_model import scripted

Serve = Callable[..., Any]


@pytest.fixture
def client(serve: Serve) -> Any:
    live = serve(command=scripted("hermes"))
    with httpx.Client(base_url=f"{live.url}/v1", timeout=30) as client:
        yield client


def body(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "<reply>ok</reply>"},
    ]
    return {"model": "reference", "messages": messages, "max_tokens": 1}


@pytest.mark.parametrize("level", ["[]", '{"a":}'], ids=["lists", "objects"])
def test_no_depth_of_arguments_is_an_error_of_the_server(client: httpx.Client, level: str) -> None:
    for depth in (*range(900, 1010, 3), 1_050):
        asked = body(level[:-1] * depth + "1" + level[-1] * depth)
        for route in ("chat/completions", "chat/render"):
            answer = client.post(f"/{route}", json=asked)
            assert answer.status_code in (200, 400), f"{depth} levels, {route}: {answer.text}"
            if depth > 1000:
                assert answer.status_code == 200


def test_half_a_pair_of_surrogates_is_rendered_as_it_is_read(client: httpx.Client) -> None:
    rendered = client.post("/chat/render", json=body('{"a": "x\\ud83d"}'))
    assert rendered.status_code == 200, rendered.text
    tokens = client.post("/detokenize", json={"model": "reference", "tokens": rendered.json()["tokens"]})
    assert "x?" in tokens.json()["prompt"]
    assert tokens.json()["prompt"] == rendered.json()["prompt"]
    answer = client.post("/chat/completions", json=body('{"a": "x\\ud83d"}'))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == rendered.json()["count"]


@pytest.mark.parametrize("options", [{"messages": []}, {"tools": 1}])
def test_an_option_that_is_none_is_named_as_the_field_at_fault(
    client: httpx.Client, options: dict[str, Any]
) -> None:
    answer = client.post("/chat/completions", json=body("{}") | {"chat_template_kwargs": options})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs"
