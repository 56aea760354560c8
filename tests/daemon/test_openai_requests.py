"""What a chat request means, from JSON to GenerateRequest; no server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agentserve.daemon.errors import InvalidRequest
from agentserve.daemon.openai.chat_schema import parse_chat
from agentserve.daemon.openai.generation_schema import Call
from agentserve.engine.protocol import Message, SamplingParams, ToolCall

USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> Call:
    return parse_chat(json.dumps({"model": "m", "messages": [USER], **fields}).encode(), "id-1")


def messages(*given: dict[str, Any]) -> tuple[Message, ...]:
    return parse(messages=list(given)).generate.messages


def test_a_plain_request_means_the_defaults_of_the_model() -> None:
    call = parse()
    assert (call.model, call.stream, call.include_usage) == ("m", False, False)
    assert call.generate.request_id == "id-1"
    assert call.generate.messages == (Message("user", "hi"),)
    assert call.generate.sampling == SamplingParams()
    assert call.generate.max_new_tokens is None
    assert (call.generate.tools_json, call.generate.template_options_json) == (None, "{}")


def test_every_sampling_field_arrives_with_its_value() -> None:
    call = parse(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-3,
        presence_penalty=1, frequency_penalty=-2, repetition_penalty=1.3, stop=["a", "", "b"], max_tokens=5,
    )  # fmt: skip
    assert call.generate.sampling == SamplingParams(0.5, 7, 0.9, 0.1, 1.3, 1.0, -2.0, -3)
    assert call.generate.stop == ("a", "b")
    assert call.generate.max_new_tokens == 5


def test_null_means_absent_for_every_field() -> None:
    names = "stream stream_options max_tokens max_completion_tokens temperature top_p top_k min_p seed stop"
    names += (
        " presence_penalty frequency_penalty repetition_penalty n tools tool_choice logprobs top_logprobs"
    )
    names += " logit_bias response_format functions function_call"
    assert parse(**dict.fromkeys(names.split())) == parse()


def test_the_smaller_of_two_output_limits_counts() -> None:
    assert parse(max_tokens=10, max_completion_tokens=4).generate.max_new_tokens == 4
    assert parse(max_tokens=None, max_completion_tokens=4).generate.max_new_tokens == 4
    assert parse(max_tokens=10, max_new_tokens=4).generate.max_new_tokens == 4
    assert parse(max_tokens=128_000).generate.max_new_tokens == 128_000


def test_the_other_name_of_the_repetition_penalty_is_understood() -> None:
    assert parse(repeat_penalty=1.3) == parse(repetition_penalty=1.3)
    assert parse(repeat_penalty=1.5, repetition_penalty=1.3) == parse(repetition_penalty=1.3)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json", {"type": "object"}),
        ("json", '{"type": "object"}'),
        ("regex", "[ab]+"),
        ("choice", ["yes", "no"]),
        ("grammar", 'start: "a"'),
    ],
)
def test_structured_outputs_constrain_like_the_guided_fields(kind: str, value: Any) -> None:
    (found, guided) = (
        parse(**fields).generate.constraint
        for fields in ({"structured_outputs": {kind: value}}, {f"guided_{kind}": value})
    )
    assert found is not None
    assert guided is not None
    assert (found.kind, found.source, found.param) == (
        guided.kind,
        guided.source,
        f"structured_outputs.{kind}",
    )


def test_structured_outputs_may_ask_for_any_object() -> None:
    found = parse(structured_outputs={"json_object": True}).generate.constraint
    assert found is not None
    assert (found.kind, json.loads(found.source)) == ("json_schema", {"type": "object"})


def test_a_top_k_of_minus_one_is_off() -> None:
    assert parse(top_k=-1).generate.sampling.top_k == 0


def test_unknown_fields_are_ignored_on_every_level() -> None:
    odd = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}], "refusal": None}
    call = parse(
        messages=[odd], store=True, metadata={"a": 1}, service_tier="auto", keep_alive="5m", user="u"
    )
    assert call == parse()


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_text_parts_are_joined_in_order(kind: str) -> None:
    parts = [{"type": kind, "text": "a "}, {"type": kind, "text": "b"}]
    for role in ("system", "user", "assistant", "tool"):
        assert messages({"role": role, "content": parts})[0].content == "a b"


def test_absent_null_and_empty_content_are_the_same() -> None:
    assert (
        messages({"role": "user"}, {"role": "user", "content": None}, {"role": "user", "content": []})
        == (Message("user", ""),) * 3
    )


def test_developer_is_system_and_system_may_stand_anywhere() -> None:
    roles = [m.role for m in messages({"role": "developer", "content": "a"}, USER, {"role": "system"}, USER)]
    assert roles == ["system", "user", "system", "user"]


def test_tool_calls_of_the_history_survive_with_content_null_empty_or_absent() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    expected = Message("assistant", None, (ToolCall("c1", "f", '{"a": 1}'),))
    for content in ({}, {"content": None}, {"content": ""}):
        assert messages({"role": "assistant", "tool_calls": [call], **content}) == (expected,)
    result = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"}
    expected_result = Message("tool", "42", tool_call_id="c1", name="f")
    assert messages({"role": "assistant", "tool_calls": [call]}, result) == (expected, expected_result)


def test_the_older_function_call_and_its_result_are_a_tool_call() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    result = {"role": "function", "name": "f", "content": "42"}
    assert messages(call, result) == (
        Message("assistant", None, (ToolCall("", "f", '{"a": 1}'),)),
        Message("tool", "42", name="f"),
    )


def test_a_refusal_of_the_history_is_what_the_assistant_said() -> None:
    said = (Message("assistant", "I won't."),)
    for content in ({}, {"content": None}, {"content": ""}):
        assert messages({"role": "assistant", "refusal": "I won't.", **content}) == said
    part = {"type": "refusal", "refusal": "I won't."}
    assert messages({"role": "assistant", "content": [part]}) == said
    assert messages({"role": "assistant", "content": "Yes.", "refusal": "no"}) == (
        Message("assistant", "Yes."),
    )


def test_only_an_assistant_refuses() -> None:
    assert messages({"role": "user", "refusal": "no"}) == (Message("user", ""),)
    with pytest.raises(InvalidRequest, match="'refusal' content is not supported"):
        messages({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]})


def test_arguments_that_are_an_object_become_json_text() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": {"ä": [1]}}}
    (message,) = messages({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls == (ToolCall("c1", "f", '{"ä":[1]}'),)


def test_reasoning_comes_back_under_either_name() -> None:
    for name in ("reasoning_content", "reasoning"):
        assert messages({"role": "assistant", "content": "a", name: "because"})[0].reasoning == "because"


def test_function_tools_reach_the_template_in_their_order_and_others_are_left_out() -> None:
    tools = [
        {"type": "function", "function": {"name": "b", "parameters": {"z": 1, "a": 2}}, "strict": True},
        {"type": "web_search"},
        {"type": "function", "function": {"name": "a"}},
    ]
    for choice in ({}, {"tool_choice": "auto"}):
        given = parse(tools=tools, **choice).generate.tools_json
        assert given == json.dumps([tools[0], tools[2]], separators=(",", ":"))
    assert parse(tools=[]).generate.tools_json is None


def test_template_options_are_handed_on() -> None:
    call = parse(chat_template_kwargs={"x": 1}, enable_thinking=True)
    assert json.loads(call.generate.template_options_json) == {"x": 1, "enable_thinking": True}


def test_a_cache_salt_is_the_namespace() -> None:
    assert parse(cache_salt="a", agentserve_cache_salt="b").generate.namespace == "a"
    assert parse(agentserve_cache_salt="b").generate.namespace == "b"


@pytest.mark.parametrize(
    ("given", "stream"), [(True, True), (False, False), ("true", True), ("False", False)]
)
def test_stream_is_a_bool_or_its_word(given: Any, stream: bool) -> None:
    assert parse(stream=given).stream is stream


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": 0},
        {"logit_bias": {}},
        {"tool_choice": "auto"},
        {"modalities": ["text"]},
        {"temperature": 0},
        {"temperature": 2, "top_p": 0, "min_p": 1, "presence_penalty": -2, "frequency_penalty": 2},
        {"stop": ["x" * 1024] * 16},
        {"stop": []},
        {"stop_token_ids": [], "bad_words": [], "min_tokens": 0, "ignore_eos": False, "repeat_penalty": 1.0},
        {"continue_final_message": False, "add_generation_prompt": True},
        {"best_of": 1, "use_beam_search": False, "length_penalty": 1.0, "typical_p": 1, "mirostat": 0},
        {"structured_outputs": {}, "grammar": "", "json_schema": None},
        {"structured_outputs": {"json": None, "json_object": False, "disable_any_whitespace": False}},
    ],
)
def test_values_that_ask_for_nothing_special_and_the_ends_of_ranges_pass(fields: dict[str, Any]) -> None:
    parse(**fields)


BAD = [
    ({"n": 33}, "n", "n must be between 1 and 32, got 33"),
    ({"temperature": 2.1}, "temperature", "temperature must be between 0 and 2, got 2.1"),
    ({"temperature": -0.1}, "temperature", "temperature must be between 0 and 2, got -0.1"),
    ({"temperature": "hot"}, "temperature", "temperature: expected a number or null, got a string"),
    ({"top_p": 1.5}, "top_p", "top_p must be between 0 and 1, got 1.5"),
    ({"min_p": -1}, "min_p", "min_p must be between 0 and 1, got -1.0"),
    ({"top_k": -2}, "top_k", "top_k must be between -1 and 2147483647, got -2"),
    ({"presence_penalty": 3}, "presence_penalty", "presence_penalty must be between -2 and 2, got 3.0"),
    ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty must be between -2 and 2, got -3.0"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be above 0, got 0.0"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0"),
    ({"max_tokens": 1.5}, "max_tokens", "max_tokens: expected an integer or null, got a number"),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "max_completion_tokens must be at least 1, got -1"),
    ({"seed": "x"}, "seed", "seed: expected an integer or null, got a string"),
    ({"stop": ["x"] * 17}, "stop", "stop: at most 16 strings, got 17"),
    ({"stop": "x" * 1025}, "stop", "stop: at most 1024 characters in each string, got 1025"),
    ({"stop": 3}, "stop", "stop: expected a string or an array or null, got an integer"),
    ({"stream": "maybe"}, "stream", "stream: expected true or false, got 'maybe'"),
    ({"logprobs": 1}, "logprobs", "logprobs: expected a boolean or null, got an integer"),
    ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs logprobs to be true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs must be between 0 and 20, got 21"),
    ({"logit_bias": {"one": 5}}, "logit_bias", "logit_bias: 'one' is not the id of a token"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "logit_bias.1 must be between -100 and 100, got 101.0"),
    (
        {"logit_bias": {str(token): 1 for token in range(1025)}},
        "logit_bias",
        "logit_bias: at most 1024 tokens, got 1025",
    ),
    (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "response_format.type: expected 'text', 'json_object' or 'json_schema'",
    ),
    (
        {"response_format": {"type": "json_schema", "schema": {}}},
        "response_format.json_schema",
        "response_format.json_schema: expected an object with a schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}},
        "response_format.json_schema.schema",
        "response_format.json_schema.schema: expected a JSON Schema, which is an object",
    ),
    ({"guided_json": "{"}, "guided_json", "guided_json: not JSON: Input data was truncated"),
    ({"guided_regex": 3}, "guided_regex", "guided_regex: expected a text that is not empty"),
    ({"guided_grammar": ""}, "guided_grammar", "guided_grammar: expected a text that is not empty"),
    (
        {"guided_choice": ["a", ""]},
        "guided_choice",
        "guided_choice: expected a list of one or more texts that are not empty",
    ),
    (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "guided_regex",
        "only one of response_format and guided_regex may constrain the answer",
    ),
    ({"functions": [{"name": "f"}]}, "functions", "functions is not supported by this server"),
    *(
        ({name: value}, name, f"{name} is not supported by this server")
        for name, value in (
            ("grammar", 'root ::= "a"'), ("json_schema", {}), ("stop_token_ids", [2]), ("bad_words", ["x"]),
            ("min_tokens", 5), ("ignore_eos", True), ("best_of", 4), ("use_beam_search", True), ("length_penalty", 0.5),
            ("allowed_token_ids", [1]), ("typical_p", 0.9), ("mirostat", 2), ("truncate_prompt_tokens", 9),
            ("include_stop_str_in_output", True), ("chat_template", "{{ 1 }}"), ("web_search_options", {}),
            ("continue_final_message", True), ("add_generation_prompt", False),
        )
    ),
    ({"repeat_penalty": 0}, "repeat_penalty", "repeat_penalty must be above 0, got 0.0"),
    ({"structured_outputs": []}, "structured_outputs", "structured_outputs: expected an object"),
    (
        {"structured_outputs": {"regex": ""}},
        "structured_outputs.regex",
        "structured_outputs.regex: expected a text that is not empty",
    ),
    (
        {"structured_outputs": {"structural_tag": "{}"}},
        "structured_outputs.structural_tag",
        "structured_outputs.structural_tag is not supported by this server",
    ),
    (
        {"structured_outputs": {"json_object": 1}},
        "structured_outputs.json_object",
        "structured_outputs.json_object: expected true or false",
    ),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs.choice",
        "only one of structured_outputs.regex and structured_outputs.choice may constrain the answer",
    ),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs.regex",
        "only one of response_format and structured_outputs.regex may constrain the answer",
    ),
    ({"messages": []}, "messages", "messages must not be empty"),
    ({"messages": "hi"}, "messages", "messages: expected an array, got a string"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is required"),
    (
        {"messages": [USER, {"role": "wizard", "content": "x"}]},
        "messages[1].role",
        "messages[1].role: unknown role 'wizard'; expected one of system, developer, user, assistant, tool, function",
    ),
    (
        {"messages": [{"role": "user", "content": 3}]},
        "messages[0].content",
        "messages[0].content: expected a string or an array or null, got an integer",
    ),
    ({"model": 3}, "model", "model: expected a string, got an integer"),
    ({"model": " "}, "model", "model must not be empty"),
    ({"tools": {"a": 1}}, "tools", "tools: expected an array or null, got an object"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "message"), BAD, ids=[json.dumps(case[0])[:40] for case in BAD])
def test_bad_input_is_refused_with_the_field_at_fault(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    error = caught.value
    assert (error.status, error.param, error.message) == (400, param, message)
    assert error.type == "invalid_request_error"
    assert error.code is not None


def test_an_image_is_refused_by_its_place_and_type() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(InvalidRequest, match="'image_url' content is not supported") as caught:
        messages({"role": "user", "content": parts})
    assert (caught.value.param, caught.value.code) == ("messages[0].content[1]", "unsupported_content")


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"model": tru}', b'{"model": "\xff"}', b'{"model": "\\ud83d"}', b"hello"]
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^The request body is not valid JSON: ") as caught:
        parse_chat(body, "id")
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_json_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^The request body: expected an object, got an array$"):
        parse_chat(b"[]", "id")


def test_endless_nesting_is_refused() -> None:
    body = b'{"model": "m", "messages": [], "tool_choice": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        parse_chat(body, "id")
