"""Ids of calls for templates that take nine letters and digits."""

from __future__ import annotations

import pytest
from agentserve.engine.prompts.call_ids import wants_short_ids, with_short_ids
from agentserve.engine.prompts.templates import ChatTemplate, TemplateError
from agentserve.engine.protocol import Message, ToolCall

CHECK = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}"
    "{{ c.id }}{% endfor %}{{ m.tool_call_id or '' }} {% endfor %}"
)
OURS = "call_0123456789abcdef01234567"


def history(call_id: str) -> list[Message]:
    return [
        Message("assistant", None, (ToolCall(call_id, "f", "{}"),)),
        Message("tool", "1", tool_call_id=call_id),
    ]


def test_calls_and_results_get_the_same_short_id_every_time() -> None:
    first, second = ChatTemplate(CHECK, {}).render(history(OURS)).split()
    assert first == second
    assert len(first) == 9
    assert first.isalnum()
    assert ChatTemplate(CHECK, {}).render(history(OURS)).split() == [first, first]
    assert first not in ChatTemplate(CHECK, {}).render(history(OURS + "0"))


def test_ids_that_fit_stay() -> None:
    assert ChatTemplate(CHECK, {}).render(history("aB3aB3aB3")).split() == ["aB3aB3aB3"] * 2
    assert with_short_ids([Message("user", "x")]) == (Message("user", "x"),)


def test_other_templates_see_the_ids_as_they_are() -> None:
    free = "{% for m in messages %}{{ m.tool_call_id or '' }}{% endfor %}"
    assert not wants_short_ids(free)
    assert ChatTemplate(free, {}).render(history(OURS)) == OURS


def test_a_result_without_an_id_is_left_to_the_template() -> None:
    refusal = "{% if messages[0].tool_call_id is undefined %}{{ raise_exception('no id') }}{% endif %}"
    with pytest.raises(TemplateError, match="no id"):
        ChatTemplate(CHECK + refusal, {}).render([Message("tool", "1")])
