"""Tokens, texts and rendered prompts over real sockets: what they say is what a generation reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentserve.daemon.generation.choices import MOST_CHOICES
from agentserve.daemon.openai import tokens as tokens_api

Serve = Callable[..., Any]
PAGE = Path(__file__).parents[2] / "docs" / "openai.md"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünïcödé 日本 hello"}]


@pytest.fixture
def live(serve: Serve) -> Any:
    return serve()


def post(live: Any, route: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/{route}", json=body, timeout=30)


def ok(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def error(response: httpx.Response) -> tuple[int, str, str | None]:
    found = response.json()["error"]
    return response.status_code, found["code"], found["param"]


def chat(live: Any, **body: Any) -> dict[str, Any]:
    return ok(post(live, "chat/completions", model="reference", max_tokens=3, **body))


def test_a_text_becomes_tokens_and_comes_back(live: Any) -> None:
    text = "Ünïcödé <|im_end|> 日本"
    found = ok(post(live, "tokenize", model="reference", prompt=text, return_token_strs=True))
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] > 0
    assert ok(post(live, "detokenize", tokens=found["tokens"]))["prompt"] == text
    plain = ok(post(live, "detokenize", tokens=found["tokens"], skip_special_tokens=True))["prompt"]
    assert plain == text.replace("<|im_end|>", "")


def test_the_empty_text_has_no_tokens(live: Any) -> None:
    assert ok(post(live, "tokenize", prompt=""))["tokens"] == []
    assert ok(post(live, "detokenize", tokens=[]))["prompt"] == ""


def test_a_rendered_prompt_is_what_a_chat_request_reads(live: Any) -> None:
    rendered = ok(
        post(live, "chat/render", model="reference", messages=MESSAGES, max_tokens=9, return_token_strs=True)
    )
    assert "Be brief." in rendered["prompt"]
    assert "Be brief." in "".join(rendered["token_strs"])
    assert ok(post(live, "detokenize", tokens=rendered["tokens"]))["prompt"] == rendered["prompt"]
    assert chat(live, messages=MESSAGES)["usage"]["prompt_tokens"] == rendered["count"]
    assert 0 < rendered["stable_tokens"] <= rendered["turn_start"] < rendered["count"]
    assert rendered["canonical_tokens"] == rendered["count"]


def test_a_rendered_prompt_shows_where_a_reply_keeps_its_own_tokens(live: Any) -> None:
    answer = chat(live, messages=MESSAGES, temperature=1, seed=3)["choices"][0]["message"]
    more = [*MESSAGES, answer, {"role": "user", "content": "and?"}]
    rendered = ok(post(live, "chat/render", model="reference", messages=more))
    assert ok(post(live, "detokenize", tokens=rendered["tokens"]))["prompt"] == rendered["prompt"]
    assert chat(live, messages=more)["usage"]["prompt_tokens"] == rendered["count"]


def test_nothing_of_it_is_booked_as_a_generation(live: Any) -> None:
    ok(post(live, "tokenize", prompt="a"))
    ok(post(live, "chat/render", model="reference", messages=MESSAGES))
    assert live.call(lambda: live.daemon.service.ledger.received) == 0


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        ("tokenize", {}, (400, "missing_required_parameter", "prompt")),
        ("tokenize", {"prompt": [1]}, (400, "invalid_type", "prompt")),
        ("tokenize", {"prompt": "a", "model": "none"}, (404, "model_not_found", "model")),
        ("detokenize", {"tokens": [-1]}, (400, "invalid_value", "tokens")),
        ("detokenize", {"tokens": [10**9]}, (400, "invalid_value", "tokens")),
        ("detokenize", {"tokens": "abc"}, (400, "invalid_type", "tokens")),
        ("chat/render", {"model": "reference", "messages": []}, (400, "invalid_value", "messages")),
        ("chat/render", {"messages": MESSAGES}, (400, "missing_required_parameter", "model")),
    ],
)
def test_a_wrong_body_is_refused_in_the_shape_of_openai(
    live: Any, route: str, body: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    assert error(post(live, route, **body)) == expected


def test_the_limits_are_named_with_their_numbers(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_api, "MOST_CHARACTERS", 1_000)
    monkeypatch.setattr(tokens_api, "MOST_TOKENS", 10)
    ok(post(live, "tokenize", prompt="a" * 1_000))
    refused = post(live, "tokenize", prompt="a" * 1_001)
    assert error(refused) == (413, "request_too_large", "prompt")
    assert "1,000" in refused.json()["error"]["message"]
    assert error(post(live, "detokenize", tokens=[1] * 11)) == (413, "request_too_large", "tokens")


def test_a_question_does_not_wait_for_a_running_generation(serve: Serve) -> None:
    live = serve(reference_step=0.05)
    (end,) = ok(post(live, "tokenize", prompt="<|im_end|>"))["tokens"]
    # Without its end the reply takes 20 seconds.
    body = {
        "model": "reference",
        "messages": MESSAGES,
        "max_tokens": 400,
        "logit_bias": {end: -100},
        "stream": True,
    }
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=body, timeout=30) as stream:
        # Kept: httpx hangs up when the iterator goes.
        lines = stream.iter_lines()
        next(lines)
        ok(post(live, "tokenize", prompt="hello"))
        assert live.call(lambda: len(live.daemon.service.ledger.active)) == 1


def test_the_page_names_the_limits() -> None:
    page = PAGE.read_text("utf-8")
    for limit in (tokens_api.MOST_CHARACTERS, tokens_api.MOST_TOKENS):
        assert f"{limit:,}" in page
    assert f"at most {MOST_CHOICES} in one request" in page
