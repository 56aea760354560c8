"""Tools, the choice among them and the calls of a history: what is understood and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agentserve.daemon.errors import InvalidRequest
from agentserve.daemon.openai.chat_schema import parse_chat
from agentserve.engine.protocol import GenerateRequest

USER = {"role": "user", "content": "hi"}
A, B = ({"type": "function", "function": {"name": name}} for name in "ab")
NAMED_B = {"type": "function", "function": {"name": "b"}}
CALLS = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "a", "arguments": "{}"}}]}


def parse(*history: dict[str, Any], **fields: Any) -> GenerateRequest:
    body = {"model": "m", "messages": [USER, *history], **fields}
    return parse_chat(json.dumps(body).encode(), "id").generate


@pytest.mark.parametrize(
    ("choice", "required"),
    [(None, ()), ("auto", ()), ("required", ("a", "b")), (NAMED_B, ("b",))],
)
def test_a_choice_says_which_tools_have_to_be_called(choice: Any, required: tuple[str, ...]) -> None:
    request = parse(tools=[A, B], tool_choice=choice)
    assert request.required_tools == required
    assert json.loads(request.tools_json or "") == [A, B]


def test_with_the_choice_none_there_are_no_tools() -> None:
    assert parse(tools=[A, B], tool_choice="none") == parse()


def test_hosted_tools_are_left_out() -> None:
    assert parse(tools=[{"type": "web_search"}, A]) == parse(tools=[A])
    assert parse(tools=[{"type": "web_search"}]) == parse()


@pytest.mark.parametrize(("given", "parallel"), [(None, True), (True, True), (False, False)])
def test_parallel_calls_are_allowed_unless_refused(given: bool | None, parallel: bool) -> None:
    request = parse(tools=[A], parallel_tool_calls=given)
    assert request.parallel_tool_calls is parallel
    options = json.loads(request.template_options_json)
    assert options == ({} if given is None else {"parallel_tool_calls": given})


NAMED_C = {"type": "function", "function": {"name": "c"}}
BAD = [
    ({"tools": [A], "tool_choice": "sometimes"}, "tool_choice", "expected 'auto', 'none', 'required' or a function"),
    ({"tools": [A], "tool_choice": {"type": "function"}}, "tool_choice", "expected 'auto'"),
    ({"tools": [A], "tool_choice": 3}, "tool_choice", "expected 'auto'"),
    ({"tools": [A], "tool_choice": NAMED_C}, "tool_choice", "there is no tool 'c' in tools"),
    ({"tool_choice": "required"}, "tool_choice", "'required' needs tools"),
    ({"tools": [A, {"type": "function"}]}, "tools[1].function", "expected an object"),
    ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name", "1 to 256 characters"),
    ({"tools": [{"function": {"name": "x" * 257}}]}, "tools[0].function.name", "1 to 256 characters"),
    (
        {"tools": [{"function": {"name": "x", "parameters": []}}]},
        "tools[0].function.parameters",
        "expected a JSON Schema, which is an object",
    ),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "expected a boolean or null, got a string"),
    ({"reasoning_effort": 3}, "reasoning_effort", "expected a string or null, got an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "message"), BAD)
def test_what_can_not_be_honoured_is_refused_by_name(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert message in caught.value.message
    assert caught.value.message.startswith(param)


def test_a_result_gets_the_name_of_its_tool() -> None:
    for given, name in (({}, "a"), ({"name": "z"}, "z")):
        request = parse(CALLS, {"role": "tool", "tool_call_id": "c1", "content": "1", **given})
        assert request.messages[-1].name == name


def test_a_result_of_a_call_that_nobody_made_is_refused() -> None:
    for history in ((), (CALLS,)):
        with pytest.raises(InvalidRequest, match="no call before it has the id 'c2'") as caught:
            parse(*history, {"role": "tool", "tool_call_id": "c2", "content": "1"})
        where = f"messages[{len(history) + 1}].tool_call_id"
        assert (caught.value.param, caught.value.code) == (where, "unknown_tool_call_id")


def test_results_may_come_in_any_order_and_without_ids() -> None:
    two = {"role": "assistant", "tool_calls": [{"id": i, "function": {"name": i}} for i in ("c1", "c2")]}
    results = [{"role": "tool", "tool_call_id": i, "content": i} for i in ("c2", "c1")]
    assert [m.name for m in parse(two, *results).messages[2:]] == ["c2", "c1"]
    assert parse(CALLS, {"role": "tool", "content": "1"}).messages[-1].tool_call_id is None
    nameless = {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}
    assert parse(nameless, {"role": "tool", "tool_call_id": "c9"}).messages[-1].tool_call_id == "c9"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning": True, "thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
        ({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}, {"enable_thinking": False}),
        ({"metadata": {}, "store": True, "service_tier": "auto", "user": "u", "prediction": None}, {}),
    ],
)  # fmt: skip
def test_what_is_for_the_template_reaches_it(fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert json.loads(parse(**fields).template_options_json) == options
