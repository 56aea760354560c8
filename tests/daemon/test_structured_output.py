"""Structured output, logprobs and biases as the official SDK and plain HTTP see them, on real sockets and workers.

The reference model writes a byte at a time and means nothing, so whatever has a form has it from the grammar.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from agentserve.daemon.openai.constraints import answer_constraint
from pydantic import BaseModel, ConfigDict, Field

Serve = Callable[..., Any]
CHAT: dict[str, Any] = {
    "model": "reference",
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 1,
    "seed": 5,
}


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "São Paulo"]
    number: int = Field(ge=1, le=99)


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    homes: list[Address] = Field(min_length=1, max_length=2)
    nickname: str | None = Field(max_length=4)


def sdk(live: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="anything", max_retries=0, timeout=30)


def post(live: Any, **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/chat/completions", json=CHAT | fields, timeout=30)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ({"guided_choice": ["yes", "no", 'say "maybe"']}, 'yes|no|say "maybe"'),
        ({"guided_choice": ["\x7f\x1f\\é"]}, r"\x7f\x1f\\é"),
        ({"guided_grammar": 'start: "<" /[a-z]{3}/ ">"'}, "<[a-z]{3}>"),
        ({"guided_json": {"enum": ["a", 1]}}, '"a"|1'),
        ({"guided_json": '{"const": [true]}'}, r"\[true\]"),
        ({"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}}, r'\{"a": ?1\}'),
    ],
)
def test_every_way_to_ask_for_a_form_is_heard(serve: Serve, fields: dict[str, Any], pattern: str) -> None:
    live = serve()
    whole = text_of(post(live, **fields))
    assert re.fullmatch(pattern, whole)
    streamed = chunks(post(live, stream=True, **fields))
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in streamed if c["choices"]) == whole


def test_drafts_do_not_change_a_constrained_answer(serve: Serve) -> None:
    live = serve(max_draft_tokens=16)
    schema = Person.model_json_schema()
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}}
    texts = {text_of(post(live, agentserve_draft_tokens=most, **asked)) for most in (0, 4, 16)}
    assert len(texts) == 1
    Person.model_validate_json(texts.pop())


ERRORS = [
    ({"guided_json": {"not": {}}}, "guided_json", "unsupported_schema_keyword", "not supported: not"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"if": {}}}}},
        "response_format",
        "unsupported_schema_keyword",
        "not supported: if",
    ),
    ({"guided_regex": "(?<=x)y"}, "guided_regex", "invalid_regular_expression", "look-around"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "invalid_regular_expression", "repetitions written out"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "invalid_grammar", 'unknown name: "nothing"'),
    ({"guided_regex": "x" * 16385}, "guided_regex", "invalid_regular_expression", "limit is 16,384"),
    ({"logit_bias": {"259": 1}}, "logit_bias", "invalid_value", "no token 259; this model's are 0 to 258"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_what_can_not_be_honoured_is_refused_before_any_work(serve: Serve, stream: bool) -> None:
    live = serve()
    for fields, param, code, message in ERRORS:
        response = post(live, stream=stream, **fields)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, "invalid_request_error")
        assert (error["param"], error["code"]) == (param, code)
        assert message in error["message"]
    with sdk(live) as client, pytest.raises(openai.BadRequestError, match="not supported: not"):
        client.chat.completions.create(**CHAT, extra_body={"guided_json": {"not": {}}})


def test_logprobs_have_the_sdks_shape_and_are_the_same_streamed(serve: Serve) -> None:
    asked = CHAT | {"logprobs": True, "top_logprobs": 3, "max_tokens": 12, "logit_bias": {"258": -100}}
    with sdk(serve()) as client:
        choice = client.chat.completions.create(**asked).choices[0]
        stream = client.chat.completions.create(**asked, stream=True)
        streamed = [
            entry
            for c in stream
            for part in c.choices
            if part.logprobs
            for entry in part.logprobs.content or []
        ]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert streamed == choice.logprobs.content
    assert "".join(entry.token for entry in streamed) == choice.message.content
    assert b"".join(bytes(entry.bytes or []) for entry in streamed).decode() == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in streamed)


def test_without_being_asked_for_there_are_no_logprobs(serve: Serve) -> None:
    live = serve()
    assert "logprobs" not in post(live).json()["choices"][0]
    assert all("logprobs" not in part for c in chunks(post(live, stream=True)) for part in c["choices"])


def test_a_bias_moves_the_choice(serve: Serve) -> None:
    live = serve()
    with sdk(live) as client:
        answer = client.chat.completions.create(**CHAT, logit_bias={str(ord("Z") - 33): 100}, max_tokens=6)
    assert answer.choices[0].message.content == "Z" * 6


def scripted(template: str) -> Callable[[int], list[str]]:
    """The command of a worker whose model says what stands between `<reply>` and `</reply>`, if it may."""
    program = Path(__file__).with_name("scripted_worker.py")
    return lambda descriptor: [sys.executable, "-P", str(program), str(descriptor), template]


def told(reply: str, **fields: Any) -> dict[str, Any]:
    """A request that makes the scripted model want to reply this."""
    message = {"role": "user", "content": f"say <reply>{reply}</reply>"}
    return CHAT | {"messages": [message], "temperature": 0, "max_tokens": 200, **fields}


def pick(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"colour": {"enum": [f"{name} red", f"{name} blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CALL = '<tool_call>\n{"name": "one", "arguments": {"colour": "one blue"}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "two"}}


@pytest.mark.parametrize("drafts", [0, 15])
def test_a_model_that_would_rather_talk_calls_the_tool_that_it_has_to(serve: Serve, drafts: int) -> None:
    live = serve(command=scripted("hermes"), draft_tokens=drafts, max_draft_tokens=drafts)
    tools = [pick("one"), pick("two")]
    with sdk(live) as client:
        asked = told("It rains.", tools=tools, tool_choice=NAMED, parallel_tool_calls=False)
        (choice,) = client.chat.completions.create(**asked).choices
        (call,) = choice.message.tool_calls or ()
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "two")
        assert json.loads(call.function.arguments)["colour"] in ("two red", "two blue")
        with client.chat.completions.stream(**asked) as stream:
            (again,) = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert again.function.arguments == call.function.arguments
        asked = told(CALL, tools=tools, tool_choice="required")
        (choice,) = client.chat.completions.create(**asked).choices
        assert [one.function.name for one in choice.message.tool_calls or ()] == ["one"]


def test_a_model_without_a_notation_for_calls_can_not_be_made_to_call(serve: Serve) -> None:
    response = post(serve(), tools=[pick("one")], tool_choice="required")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tool_choice")
    assert "was taught none" in error["message"]


def test_the_form_holds_for_the_answer_and_not_for_the_reasoning(serve: Serve) -> None:
    live = serve(command=scripted("opening"))
    schema = {"type": "object", "properties": {"n": {"enum": [5, 6]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for answer in ('{"n": 6}', "It is 6."):
        response = httpx.post(
            f"{live.url}/v1/chat/completions",
            json=told(f"<think>\nI think: {{}}\n</think>\n\n{answer}", response_format=form),
        )
        message = response.json()["choices"][0]["message"]
        assert message["reasoning_content"] == "I think: {}"
        assert json.loads(message["content"])["n"] in (5, 6)


def test_with_channels_the_form_holds_for_the_last_one(serve: Serve) -> None:
    live = serve(command=scripted("harmony"))
    script = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>maybe"
    message = httpx.post(
        f"{live.url}/v1/chat/completions", json=told(script, guided_choice=["malus", "no"])
    ).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "malus")


def test_calls_of_strict_tools_keep_to_their_schemas(serve: Serve) -> None:
    live = serve(command=scripted("hermes"))
    strict, free = pick("one"), pick("one")
    strict["function"]["strict"] = True
    wrong = f"Well.\n{CALL.replace('one blue', 'one rex')}"
    with sdk(live) as client:
        loose = client.chat.completions.create(**told(wrong, tools=[free])).choices[0].message
        held = client.chat.completions.create(**told(wrong, tools=[strict])).choices[0].message
    assert [call.function.arguments for call in loose.tool_calls or ()] == ['{"colour": "one rex"}']
    (call,) = held.tool_calls or ()
    assert json.loads(call.function.arguments)["colour"] in ("one red", "one blue")
    assert held.content == "Well."


def test_an_empty_schema_is_any_object() -> None:
    for asked in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}):
        constraint = answer_constraint(asked, {})
        assert constraint is not None
        assert json.loads(constraint.source) == {"type": "object"}
    assert answer_constraint({"type": "text"}, {}) is None


def test_an_answer_that_can_not_go_on_ends_as_an_error_and_the_worker_lives(serve: Serve) -> None:
    """The grammar has no end, and behind its first letters looking for one takes more than it may."""
    live = serve(max_draft_tokens=8)
    endless = {"guided_grammar": 'start: /[a-c]{3}/ tail\ntail: "x" tail', "max_tokens": 3000}
    response = post(live, **endless)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "constraint_failed")
    lines: list[str] = []
    url, body = f"{live.url}/v1/chat/completions", CHAT | endless | {"stream": True}
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", url, json=body, timeout=30) as streamed,
    ):
        lines.extend(line for line in streamed.iter_lines() if line)
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "streaming_error"
    assert text_of(post(live, guided_choice=["yes"])) == "yes"
