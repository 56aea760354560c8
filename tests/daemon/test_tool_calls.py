"""Tool calls and reasoning from a model's tokens to the official SDK, over real sockets and through a real worker."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from agentserve.cli import chat
from agentserve.daemon.client import DaemonClient
from agentserve.daemon.paths import Paths
from scripted_model import scripted

Serve = Callable[..., Any]
READ: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
LIST = {"type": "function", "function": {"name": "list"}}
TOOLS = [READ, LIST]
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'


def sdk(live: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="anything", max_retries=0, timeout=20)


def told(reply: str, **fields: Any) -> dict[str, Any]:
    """A request that makes the scripted model reply this."""
    message = {"role": "user", "content": f"say <reply>{reply}</reply>"}
    return {"model": "reference", "messages": [message], "temperature": 0, **fields}


def whole(live: Any, reply: str, **fields: Any) -> Any:
    with sdk(live) as client:
        return client.chat.completions.create(**told(reply, **fields)).choices[0]


class Streamed:
    """A streamed answer put together as clients do it."""

    def __init__(self, chunks: list[Any]) -> None:
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        self.text = "".join(delta.content or "" for delta in deltas)
        self.reasoning = "".join(delta.model_dump().get("reasoning_content") or "" for delta in deltas)
        self.pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
        (self.finish_reason,) = [
            choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason
        ]
        self.calls: list[list[str]] = []
        for piece in self.pieces:
            if piece.id:
                assert piece.index == len(self.calls)
                self.calls.append([piece.function.name, ""])
            self.calls[piece.index][1] += piece.function.arguments


def streamed(live: Any, reply: str, **fields: Any) -> Streamed:
    with sdk(live) as client:
        return Streamed(list(client.chat.completions.create(**told(reply, stream=True, **fields))))


def names_and_arguments(message: Any) -> list[list[str]]:
    return [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]


@pytest.fixture
def live(serve: Serve) -> Any:
    return serve(command=scripted("hermes"))


def test_a_call_is_no_text_and_its_content_is_null(live: Any) -> None:
    choice = whole(live, CALL, tools=TOOLS)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "read")
    assert json.loads(call.function.arguments) == {"path": "a.py"}
    assert call.id.startswith("call_")
    assert len(call.id) == len("call_") + 24


def test_the_first_delta_of_a_call_has_its_index_id_type_and_name(live: Any) -> None:
    answer = streamed(live, CALL, tools=TOOLS)
    first, *others = answer.pieces
    assert (first.index, first.type, first.function.name) == (0, "function", "read")
    assert first.id.startswith("call_")
    assert others
    assert all((piece.id, piece.function.name, piece.type) == (None, None, None) for piece in others)
    assert (answer.calls, answer.finish_reason) == ([["read", '{"path": "a.py"}']], "tool_calls")


REPLIES = {
    "text alone": ("It rains.", 0),
    "text and a call": (f"I look.\n{CALL}", 1),
    "two calls": (f"{CALL}\n{SECOND}", 2),
    "text between calls": (f"One. {CALL} Two. {SECOND} Three.", 2),
    "a call that is no JSON": ('<tool_call>\n{"name": "read", "arguments": {"path"}}\n</tool_call> so.', 0),
    "a call that breaks off": ('Well <tool_call>\n{"name": "read", "arguments": {"path": "a', 0),
    "a good call before a broken one": (f'{CALL}\n<tool_call>\n{{"name": "list", "arg', 1),
    "a marker in prose": ("The tag <tool_call> opens a call.", 0),
    "other letters": ("Grüße, 日本 🦊\n" + CALL.replace("a.py", "ä/🦊.py"), 1),
}


@pytest.mark.parametrize("drafts", [0, 15])
def test_streamed_and_whole_answers_are_the_same(serve: Serve, drafts: int) -> None:
    live = serve(command=scripted("hermes"), draft_tokens=drafts, max_draft_tokens=drafts)
    for reply, count in REPLIES.values():
        one, other = whole(live, reply, tools=TOOLS), streamed(live, reply, tools=TOOLS)
        calls = names_and_arguments(one.message)
        assert (one.message.content or "", calls, one.finish_reason) == (
            other.text,
            other.calls,
            other.finish_reason,
        ), reply
        assert len(calls) == count, reply
        assert one.finish_reason == ("tool_calls" if count else "stop")
        assert count or one.message.content == reply


def test_ids_are_unique_over_a_conversation(live: Any) -> None:
    ids = [
        call.id for _ in range(3) for call in whole(live, f"{CALL}\n{SECOND}", tools=TOOLS).message.tool_calls
    ]
    assert len(set(ids)) == 6


def test_a_call_that_the_limit_cuts_is_text_and_the_reason_is_length(live: Any) -> None:
    choice = whole(live, CALL, tools=TOOLS, max_tokens=len(CALL) - 30)
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert CALL.startswith(choice.message.content)


def test_without_parallel_calls_the_answer_ends_with_its_first_call(live: Any) -> None:
    reply = f"First.\n{CALL}\n{SECOND} and more."
    with sdk(live) as client:
        asked = told(reply, tools=TOOLS, parallel_tool_calls=False)
        answer = client.chat.completions.create(**asked)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("First.", "tool_calls")
    assert names_and_arguments(choice.message) == [["read", '{"path": "a.py"}']]
    ends = reply.index("</tool_call>") - len("<tool_call>") + 2  # a tag is one token
    assert answer.usage is not None
    assert answer.usage.completion_tokens == ends
    assert streamed(live, reply, tools=TOOLS, parallel_tool_calls=False).calls == names_and_arguments(
        choice.message
    )


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_the_model_is_told_of_none_and_nothing_is_a_call(
    live: Any, fields: dict[str, Any]
) -> None:
    with sdk(live) as client:
        answer = client.chat.completions.create(**told("calls nothing", **fields))
        plain = client.chat.completions.create(**told("calls nothing"))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("calls nothing", "stop")
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens


def test_a_stop_string_ends_a_reply_before_its_call(live: Any) -> None:
    choice = whole(live, f"I look. HALT {CALL}", tools=TOOLS, stop="HALT")
    assert (choice.message.content, choice.message.tool_calls) == ("I look. ", None)
    assert choice.finish_reason == "stop"


THOUGHT = "<think>\nThe user wants\n\nthe weather.\n</think>\n\n"


@pytest.mark.parametrize("template", ["thinking", "opening"])
def test_reasoning_has_fields_of_its_own_and_no_markers(serve: Serve, template: str) -> None:
    live = serve(command=scripted(template))
    reply = f"{THOUGHT}It rains."
    one, other = whole(live, reply), streamed(live, reply)
    fields = one.message.model_dump()
    assert fields["content"] == "It rains."
    assert fields["reasoning_content"] == fields["reasoning"] == "The user wants\n\nthe weather."
    assert (other.text, other.reasoning) == ("It rains.", fields["reasoning"])
    assert one.finish_reason == other.finish_reason == "stop"


def test_calls_come_after_reasoning_and_none_within(serve: Serve) -> None:
    live = serve(command=scripted("thinking"))
    reply = f"<think>\nMaybe {CALL}?\n</think>\n\nYes.\n{CALL}"
    one, other = whole(live, reply, tools=TOOLS), streamed(live, reply, tools=TOOLS)
    assert names_and_arguments(one.message) == other.calls == [["read", '{"path": "a.py"}']]
    assert one.message.model_dump()["reasoning"] == other.reasoning == f"Maybe {CALL}?"
    assert one.message.content == other.text == "Yes."


def test_reasoning_that_is_cut_is_all_there_is(serve: Serve) -> None:
    live = serve(command=scripted("opening"))
    choice = whole(live, f"{THOUGHT}It rains.", max_tokens=8)
    assert (choice.finish_reason, choice.message.content) == ("length", "")
    assert choice.message.model_dump()["reasoning"] == "The user"


def test_gpt_oss_channels_are_taken_apart(serve: Serve) -> None:
    live = serve(command=scripted("harmony"))
    thought = "<|channel|>analysis<|message|>Look first.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path": "a.py"}<|call|>'
    choice = whole(live, thought + call, tools=TOOLS)
    assert names_and_arguments(choice.message) == [["read", '{"path": "a.py"}']]
    assert (choice.message.content, choice.message.model_dump()["reasoning"]) == (None, "Look first.")
    final = whole(live, f"{thought}<|channel|>final<|message|>It rains.")
    assert (final.message.content, final.finish_reason) == ("It rains.", "stop")


def post(live: Any, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_template_hears_whether_to_think(serve: Serve) -> None:
    """With the block already closed the model's words are its answer; with it open they are reasoning."""
    live = serve(command=scripted("opening"))
    for fields, opened in (
        ({}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "none", "enable_thinking": True}, True),
    ):
        block = "<think>\n" if opened else "<think>\n\n</think>\n\n"
        message = post(live, told(f"{block}Hm.", **fields))["choices"][0]["message"]
        expected = {"content": "", "reasoning": "Hm."} if opened else {"content": "Hm."}
        assert {name: message[name] for name in expected} == expected, fields
        assert ("reasoning" in message) == opened, fields


def test_the_template_hears_the_effort(serve: Serve) -> None:
    live = serve(command=scripted("opening"))
    efforts: tuple[dict[str, Any], ...] = (
        {},
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "low"}},
    )
    counts = [post(live, told("x", **effort))["usage"]["prompt_tokens"] for effort in efforts]
    assert counts[0] < counts[1] == counts[2]


def test_a_format_can_be_chosen_for_a_model_and_switched_off(serve: Serve) -> None:
    off = serve(
        command=scripted("thinking"),
        tool_formats={"reference": "none"},
        reasoning_formats={"reference": "none"},
    )
    # Control tokens are markers to nobody then, and so they are no text.
    assert whole(off, f"{THOUGHT}{CALL}", tools=TOOLS).message.content == (
        '\nThe user wants\n\nthe weather.\n\n\n\n{"name": "read", "arguments": {"path": "a.py"}}\n'
    )
    other = serve(command=scripted("hermes"), tool_formats={"reference": "mistral"})
    choice = whole(other, '[TOOL_CALLS]read[ARGS]{"path": "a.py"}', tools=TOOLS)
    assert names_and_arguments(choice.message) == [["read", '{"path": "a.py"}']]


def test_mistrals_older_templates_get_ids_that_they_take(serve: Serve) -> None:
    live = serve(command=scripted("mistral"))
    message = whole(live, '[TOOL_CALLS][{"name": "read", "arguments": {}}]', tools=TOOLS).message
    (call,) = message.tool_calls
    history = [
        {"role": "user", "content": "read"},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "<reply>Done.</reply>"},
    ]
    with sdk(live) as client:
        answer = client.chat.completions.create(model="reference", messages=history, tools=TOOLS)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "Done."


def test_content_logging_keeps_calls_and_reasoning(serve: Serve, paths: Paths) -> None:
    live = serve(command=scripted("thinking"), log_content=True)
    whole(live, f"{THOUGHT}Yes.\n{CALL}", tools=TOOLS)
    live.until(lambda: not live.daemon.service.ledger.active)
    (line,) = paths.request_log.read_text().splitlines()
    record = json.loads(line)
    assert record["content"]["answer"] == 'The user wants\n\nthe weather.Yes.read{"path": "a.py"}'
    assert record["finish_reason"] == "tool_calls"


def test_the_command_line_shows_the_answer_and_says_that_the_model_thinks(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = serve(command=scripted("thinking"))
    monkeypatch.setattr(chat, "running_client", lambda _paths: DaemonClient("127.0.0.1", live.port))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    chat.run(f"say <reply>{THOUGHT}It rains.</reply>", temperature=0)
    assert capsys.readouterr() == ("It rains.\n", "(thinking)\n")
