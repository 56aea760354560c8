"""Requests that agents sent, without their words, are read and answered: `run.py --save` recorded them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from daemon_process import daemon_process

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
WORKER = Path(__file__).parents[1] / "daemon/scripted_worker.py"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Its model has a template that takes tools."""
    home = tmp_path_factory.mktemp("recorded") / "home"
    with (
        daemon_process(home, "mock = true", (str(WORKER), "hermes")) as process,
        httpx.Client(base_url=process.url, timeout=30) as client,
    ):
        yield client


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def body(request: pytest.FixtureRequest) -> Any:
    return {**json.loads(request.param.read_text()), "model": "reference"}


def test_the_model_is_told_of_every_message_and_every_tool(daemon: httpx.Client, body: Any) -> None:
    answer = daemon.post("/v1/chat/render", json=body)
    assert answer.status_code == 200, answer.text
    prompt = answer.json()["prompt"]
    tools = body.get("tools", [])
    # Its template puts the tools into a turn of their own, and opens that of the reply.
    assert prompt.count("<|im_start|>") == len(body["messages"]) + bool(tools) + 1
    assert all(json.dumps(tool["function"]["name"]) in prompt for tool in tools)
    assert all(text in prompt for message in body["messages"] for text in texts(message["content"]))


def test_it_is_answered_with_one_end(daemon: httpx.Client, body: Any) -> None:
    last = body["messages"][-1]
    asked = {**body, "messages": [*body["messages"][:-1], with_order(last)]}
    answer = daemon.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    text, ends, usages = told(answer, streamed=body.get("stream", False))
    assert (text, ends) == ("Done.", ["stop"])
    wants_usage = not body.get("stream") or "stream_options" in body
    assert [usage["completion_tokens"] > 0 for usage in usages] == [True] * wants_usage


def texts(content: Any) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [part["text"] for part in content]


def with_order(message: Any) -> Any:
    """The message, and at its end what the model shall say, in the form that its content has."""
    order, content = "<reply>Done.</reply>", message["content"]
    parts = [*content, {"type": "text", "text": order}] if isinstance(content, list) else content + order
    return {**message, "content": parts}


def told(answer: httpx.Response, *, streamed: bool) -> tuple[str, list[str], list[Any]]:
    """The text of an answer, how its choices end, and its counts of tokens."""
    if not streamed:
        whole = answer.json()
        [choice] = whole["choices"]
        return choice["message"]["content"], [choice["finish_reason"]], [whole["usage"]]
    *frames, end = answer.text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return (
        "".join(choice["delta"].get("content") or "" for choice in choices),
        [choice["finish_reason"] for choice in choices if choice.get("finish_reason")],
        [chunk["usage"] for chunk in chunks if chunk.get("usage")],
    )
