"""`/v1/completions` over real sockets and a real worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Serve = Callable[..., Any]
ASKED: dict[str, Any] = {"model": "reference", "prompt": "once upon a time", "temperature": 1, "seed": 5}


@pytest.fixture
def live(serve: Serve) -> Any:
    return serve()


def post(live: Any, route: str = "completions", **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/{route}", json=fields, timeout=30)


def ok(live: Any, **fields: Any) -> dict[str, Any]:
    response = post(live, **ASKED | fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def texts(body: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return [choice["text"] for choice in body["choices"]]


def tokens(live: Any, text: str) -> list[int]:
    found: list[int] = post(live, "tokenize", prompt=text).json()["tokens"]
    return found


def streamed(live: Any, count: int = 1, **fields: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """The texts of the choices, and all chunks."""
    response = post(live, **ASKED | {"stream": True} | fields)
    assert response.headers["content-type"] == "text/event-stream"
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    found = [""] * count
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        found[choice["index"]] += choice["text"]
    return found, chunks


def test_an_answer_has_the_shape_of_openai_and_the_block_of_ours(live: Any) -> None:
    body = ok(live, temperature=0)
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "reference", "cmpl-")
    assert body["choices"][0]["finish_reason"] == "length"
    usage = body["usage"]
    # 16 tokens are the default of this route.
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(tokens(live, ASKED["prompt"])), 16)
    assert body["agentserve"]["new_prefill_tokens"] == usage["prompt_tokens"]
    assert ok(live, temperature=0, max_tokens=3)["usage"]["completion_tokens"] == 3
    assert ok(live)["choices"] == ok(live)["choices"], "the same seed, the same text"


def test_text_and_tokens_are_the_same_prompt_and_no_template_touches_it(live: Any) -> None:
    given = tokens(live, ASKED["prompt"])
    assert texts(ok(live, prompt=given)) == texts(ok(live))
    assert texts(ok(live, prompt=[given])) == texts(ok(live))
    assert texts(ok(live, prompt=[ASKED["prompt"]])) == texts(ok(live))


def test_a_list_of_prompts_is_answered_in_its_order(live: Any) -> None:
    prompts = ["first", "second one", "the third prompt"]
    body = ok(live, prompt=prompts, n=2)
    each = [ok(live, prompt=prompt, seed=5 + choice) for prompt in prompts for choice in range(2)]
    alone = [text for one in each for text in texts(one)]
    assert texts(body) == alone
    assert body["usage"]["prompt_tokens"] == sum(len(tokens(live, prompt)) for prompt in prompts)
    assert body["usage"]["completion_tokens"] == sum(one["usage"]["completion_tokens"] for one in each)
    assert texts(ok(live, prompt=[tokens(live, prompt) for prompt in prompts], n=2)) == alone
    record = httpx.get(f"{live.url}/agentserve/v1/requests").json()["requests"][0]
    assert record["prompt_tokens"] == body["usage"]["prompt_tokens"]
    assert record["cached_tokens"] + record["new_prefill_tokens"] == record["prompt_tokens"]


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"prompt": ["a", "b"], "echo": True}, {"logprobs": 2}])
def test_a_stream_is_the_same_text(live: Any, fields: dict[str, Any]) -> None:
    whole = ok(live, **fields)
    found, chunks = streamed(live, len(whole["choices"]), stream_options={"include_usage": True}, **fields)
    assert found == texts(whole)
    *content, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    reasons = [
        choice["finish_reason"] for chunk in content for choice in chunk["choices"] if choice["finish_reason"]
    ]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    assert "agentserve" in content[-1]


def test_a_stop_string_ends_the_text_before_it(live: Any) -> None:
    (whole,) = texts(ok(live, max_tokens=60))
    stop = whole[8:10]
    body = ok(live, max_tokens=60, stop=stop)
    assert texts(body) == [whole[: whole.index(stop)]]
    assert body["choices"][0]["finish_reason"] == "stop"


def test_echo_puts_the_prompt_before_each_answer(live: Any) -> None:
    prompt = "ünïcödé <|im_end|> 日本"
    plain = texts(ok(live, prompt=prompt, n=2))
    echoed = [prompt + text for text in plain]
    assert texts(ok(live, prompt=prompt, n=2, echo=True)) == echoed
    assert texts(ok(live, prompt=tokens(live, prompt), n=2, echo=True)) == echoed


def test_logprobs_have_the_lists_of_the_older_api(live: Any) -> None:
    choice = ok(live, temperature=0, logprobs=2, max_tokens=12)["choices"][0]
    told = choice["logprobs"]
    assert {len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {12}
    assert all(len(top) == 2 for top in told["top_logprobs"])
    assert told["text_offset"][0] == 0
    assert all(
        choice["text"].startswith(token, at)
        for token, at in zip(told["tokens"], told["text_offset"], strict=True)
    )
    _, chunks = streamed(live, temperature=0, logprobs=2, max_tokens=12)
    offsets = [
        at for chunk in chunks for choice in chunk["choices"] for at in choice["logprobs"]["text_offset"]
    ]
    assert offsets == told["text_offset"]


def test_a_prompt_that_goes_on_reuses_what_is_known(live: Any) -> None:
    first = "a long beginning that is shared. " * 8
    ok(live, prompt=first)
    body = ok(live, prompt=first + "and more")
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 200


def test_the_answer_may_be_held_to_a_form(live: Any) -> None:
    for form in ({"guided_regex": "[0-9]{4}"}, {"structured_outputs": {"regex": "[0-9]{4}"}}):
        (text,) = texts(ok(live, **form))
        assert text.isdigit()


@pytest.mark.parametrize(
    ("fields", "param", "code", "text"),
    [
        ({"prompt": None}, "prompt", "invalid_type", "prompt"),
        ({"prompt": []}, "prompt", "invalid_value", "must not be empty"),
        ({"prompt": ""}, "prompt", "empty_prompt", "no tokens"),
        ({"prompt": ["a", [1]]}, "prompt", "invalid_type", "mixed"),
        ({"prompt": [10**9]}, "prompt", "invalid_value", "no token 1000000000"),
        ({"prompt": ["a"] * 33}, "prompt", "invalid_value", "at most 32 choices"),
        ({"prompt": ["a"] * 5, "n": 7}, "n", "invalid_value", "5 prompts times 7"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter", "vocabulary has no tokens"),
        ({"best_of": 3}, "best_of", "unsupported_parameter", "best_of"),
        ({"logprobs": 21}, "logprobs", "invalid_value", "between 0 and 20"),
        ({"logprobs": 1, "echo": True}, "logprobs", "unsupported_parameter", "echo"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value", "at least 1"),
        ({"ignore_eos": True}, "ignore_eos", "unsupported_parameter", "not supported"),
        ({"messages": [{"role": "user"}]}, "messages", "unsupported_parameter", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter", "not supported"),
        (
            {"prompt": ["a", "b"], "agentserve_session_id": "s"},
            "agentserve_session_id",
            "invalid_value",
            "one prompt",
        ),
        (
            {"prompt": ["a", "b"], "agentserve_pin_prefix": True},
            "agentserve_pin_prefix",
            "invalid_value",
            "one prompt",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    live: Any, fields: dict[str, Any], param: str, code: str, text: str
) -> None:
    response = post(live, **ASKED | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert text in error["message"]


def test_a_prompt_is_required_and_best_of_one_asks_for_nothing(live: Any) -> None:
    response = post(live, model="reference")
    assert response.json()["error"]["code"] == "missing_required_parameter"
    ok(live, best_of=1, suffix="", echo=None, logprobs=None, user="me", messages=[], tools=None, min_tokens=0)


@pytest.mark.parametrize("prompt", ["long " * 100, [65] * 500])
def test_a_prompt_over_the_context_is_refused_with_both_numbers(serve: Serve, prompt: Any) -> None:
    response = post(serve(max_context=256), **ASKED | {"prompt": prompt})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert "maximum context length is 256 tokens" in error["message"]
