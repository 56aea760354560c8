"""Tool calls come back with other ids and other JSON, and are the same calls."""

from __future__ import annotations

import pytest
from agentserve.engine.protocol import Message, ToolCall
from transcript_desk import CALL_TEXT, NEXT, QUESTION, TOOLS, Desk, assistant


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("call_1", "read", '{"path": "the fox", "deep": [1, null]}'),
        ToolCall("another", "read", '{"path":"the fox","deep":[1,null]}'),
        ToolCall("", "read", '{\n  "path": "the f\\u006fx",\n  "deep": [ 1, null ]\n}'),
    ],
    ids=["as generated", "compact", "indented and escaped"],
)
@pytest.mark.parametrize("content", ["", None])
def test_calls_are_found_whatever_their_id_and_however_their_arguments_are_written(
    call: ToolCall, content: str | None
) -> None:
    desk = Desk()
    known = desk.reply(CALL_TEXT, QUESTION, tools_json=TOOLS)
    result = Message("tool", "a fox", tool_call_id=call.id)
    prompt = desk.prompt(QUESTION, assistant(content, call), result, tools_json=TOOLS)
    assert prompt.tokens[: len(known)] == known


@pytest.mark.parametrize("space", ["", "  "])
def test_a_call_in_other_spelling_than_the_templates_keeps_what_was_generated(space: str) -> None:
    desk = Desk()
    own = f'on it{{}}\n<tool_call>\n{{"name":{space}"read",{space}"arguments":{space}{{"path":{space}"the fox"}}}}\n</tool_call>'
    known = desk.reply(own, QUESTION)
    call = ToolCall("1", "read", '{"path": "the fox"}')
    messages = (QUESTION, assistant("on it{}", call), Message("tool", "a fox"))
    prompt = desk.prompt(*messages)
    assert prompt.tokens[: len(known)] == known
    assert desk.spelled(prompt.tokens) == desk.rendered(*messages).replace(
        '{"name": "read", "arguments": {"path": "the fox"}}', own.split("\n")[2]
    )
    other = ToolCall("1", "read", '{"path": "the dog"}')
    assert desk.prompt(QUESTION, assistant("on it{}", other), Message("tool", "")).canonical is None


def test_json_in_words_is_compared_to_the_letter() -> None:
    desk = Desk()
    desk.reply('say {"a":1}', QUESTION)
    call = ToolCall("1", "read", '{"path": "the fox"}')
    later = (NEXT, assistant("", call), Message("tool", "a fox"))
    assert desk.prompt(QUESTION, assistant('say {"a":1}'), *later).canonical is not None
    assert desk.prompt(QUESTION, assistant('say {"a": 1}'), *later).canonical is None


def test_a_call_is_not_taken_for_another_one_of_the_same_conversation() -> None:
    desk = Desk()
    desk.reply('\n<tool_call>\n{"name":"read","arguments":{"path":"the fox"}}\n</tool_call>', QUESTION)
    fox, dog = (ToolCall("1", "read", f'{{"path": "the {animal}"}}') for animal in ("fox", "dog"))
    result = Message("tool", "")
    assert desk.prompt(QUESTION, assistant("", dog), result, assistant("", fox), result).canonical is None
    assert desk.prompt(QUESTION, assistant("", fox), result, assistant("", dog), result).canonical is not None


def test_calls_with_other_arguments_are_not_taken() -> None:
    desk = Desk()
    desk.reply(CALL_TEXT, QUESTION)
    call = ToolCall("1", "read", '{"path": "the fox", "deep": [1, 0]}')
    assert desk.prompt(QUESTION, assistant("", call), Message("tool", "a fox")).canonical is None
