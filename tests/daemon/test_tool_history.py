"""An agent's loop: what the model said comes back as history, with its calls and reasoning, and is not computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from scripted_model import scripted

Serve = Callable[..., Any]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "list")]
SPACED = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py", "lines": [1, 2]}}\n</tool_call>'
COMPACT = '<tool_call>\n{"name":"read","arguments":{"lines":[1,2],"path":"a.py"}}\n</tool_call>'
LIST = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'


class Agent:
    """Sends back what it gets, as the message says it, and answers every call."""

    def __init__(self, serve: Serve, template: str, **settings: Any) -> None:
        self.url = serve(command=scripted(template), **settings).url
        self.messages: list[dict[str, Any]] = []

    def turn(self, reply: str, **fields: Any) -> dict[str, Any]:
        """Makes the model say this; returns the answer."""
        calls = self.messages[-1].get("tool_calls", ()) if self.messages else ()
        told = f"go on: <reply>{reply}</reply>"
        for call in calls[1:]:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
        if calls:
            self.messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": told})
        else:
            self.messages.append({"role": "user", "content": told})
        body = {"model": "reference", "messages": self.messages, "tools": TOOLS, **fields}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=20)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        self.messages.append(answer["choices"][0]["message"])
        return answer


def everything(answer: dict[str, Any]) -> int:
    """The tokens of prompt and reply that were computed: all but the last, which the next prompt feeds."""
    return int(answer["usage"]["total_tokens"]) - 1


def cached(answer: dict[str, Any]) -> int:
    return int(answer["agentserve"]["cached_tokens"])


@pytest.mark.parametrize(
    "reply",
    [SPACED, f"I look.\n{SPACED}", COMPACT, f"{SPACED}\n{COMPACT}", f"Both.\n{COMPACT}\n{LIST}"],
    ids=["as the template", "with text", "spelled otherwise", "two calls", "text and two calls"],
)
def test_no_turn_of_a_tool_loop_is_computed_twice(serve: Serve, reply: str) -> None:
    agent = Agent(serve, "hermes")
    before = agent.turn(reply)
    for _ in range(3):
        after = agent.turn(reply)
        assert cached(after) == everything(before)
        assert after["agentserve"]["prefix_action"] in ("append", "message_append")
        before = after
    assert cached(agent.turn("It rains.")) == everything(before)


def test_ten_turns_with_calls_grow_without_a_break(serve: Serve) -> None:
    agent = Agent(serve, "hermes")
    answers = [agent.turn(COMPACT if turn % 2 else f"Turn {turn}.\n{SPACED}") for turn in range(10)]
    assert [cached(answer) for answer in answers[1:]] == [everything(answer) for answer in answers[:-1]]


@pytest.mark.parametrize("template", ["thinking", "opening"])
def test_reasoning_that_comes_back_is_not_computed_again_within_a_turn(serve: Serve, template: str) -> None:
    """The templates render the reasoning behind the last user message, and drop that of earlier turns."""
    agent = Agent(serve, template)
    thought = "<think>\nFirst the file.\n</think>\n\n"
    # A line break before a call, as the templates have it.
    before = agent.turn(f"{thought}\n{COMPACT}")
    assert agent.messages[-1]["reasoning_content"] == "First the file."
    after = agent.turn(f"{thought}It rains.")
    assert cached(after) == everything(before)
    assert agent.messages[-1]["content"] == "It rains."


def test_a_reply_that_ends_with_its_first_call_is_found_again(serve: Serve) -> None:
    agent = Agent(serve, "hermes")
    before = agent.turn(f"{COMPACT}\n{LIST}", parallel_tool_calls=False)
    assert len(agent.messages[-1]["tool_calls"]) == 1
    assert cached(agent.turn("Good.", parallel_tool_calls=False)) == everything(before)


def test_a_call_that_was_cut_comes_back_as_the_text_that_it_is(serve: Serve) -> None:
    agent = Agent(serve, "hermes")
    before = agent.turn(COMPACT, max_tokens=30)
    assert "tool_calls" not in agent.messages[-1]
    assert cached(agent.turn("Good.")) == everything(before)


def test_a_rendered_prompt_is_that_of_the_namespace_that_the_settings_name(serve: Serve) -> None:
    agent = Agent(serve, "hermes", namespace_keys=("prompt_cache_key",))
    agent.turn(COMPACT, prompt_cache_key="mine")
    answer = agent.turn("Good.", prompt_cache_key="mine")
    asked = {"model": "reference", "messages": agent.messages[:-1], "tools": TOOLS}
    mine, other = (
        httpx.post(f"{agent.url}/v1/chat/render", json={**asked, "prompt_cache_key": key}, timeout=20).json()
        for key in ("mine", "other")
    )
    assert mine["count"] == answer["usage"]["prompt_tokens"] != other["count"]


def test_another_answer_in_the_history_is_no_hit(serve: Serve) -> None:
    agent = Agent(serve, "hermes")
    before = agent.turn(SPACED)
    agent.messages[-1]["tool_calls"][0]["function"]["arguments"] = '{"path": "b.py", "lines": [1, 2]}'
    assert cached(agent.turn("Good.")) < everything(before) - 20
