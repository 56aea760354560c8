"""Which templates render every prompt as the beginning of the next one, and what is done about thinking blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.prompts.templates import read_template
from agentserve.engine.protocol import Message, ToolCall
from agentserve.engine.text.tokenise import read_tokenizer
from transcript_desk import (
    CALL_TEXT,
    EMPTY_BLOCK,
    NEXT,
    NO_THINKING,
    QUESTION,
    REPLY,
    SYSTEM,
    Desk,
    assistant,
)
from transcript_models import KINDS, MISTRAL, SHOWING, THINKING


def test_an_empty_thinking_block_that_history_leaves_out_stays_in_the_tokens() -> None:
    desk = Desk(THINKING)
    messages = [SYSTEM, QUESTION]
    for turn in range(3):
        known = desk.reply(f"{REPLY} {turn}", *messages, template_options_json=NO_THINKING)
        messages += [assistant(f"{REPLY} {turn}"), NEXT]
        prompt = desk.prompt(*messages, template_options_json=NO_THINKING)
        assert prompt.tokens[: len(known)] == known
    plain = desk.rendered(*messages, template_options_json=NO_THINKING)
    assert plain.count(EMPTY_BLOCK) == 1
    spelled = desk.spelled(prompt.tokens)
    assert spelled.count(EMPTY_BLOCK) == 4
    assert spelled.replace(EMPTY_BLOCK, "") == plain.replace(EMPTY_BLOCK, "")


def test_an_empty_reply_behind_an_empty_thinking_block_is_found_too() -> None:
    desk = Desk(THINKING)
    known = desk.reply("", QUESTION, template_options_json=NO_THINKING)
    prompt = desk.prompt(QUESTION, assistant(""), NEXT, template_options_json=NO_THINKING)
    assert prompt.tokens[: len(known)] == known
    assert prompt.canonical == len(desk.prompt(QUESTION).tokens)


@pytest.mark.parametrize("content", [REPLY, EMPTY_BLOCK + REPLY], ids=["stripped", "echoed"])
def test_an_empty_thinking_block_that_the_model_wrote_may_be_echoed_or_stripped(content: str) -> None:
    desk = Desk(THINKING)
    known = desk.reply(EMPTY_BLOCK + REPLY, QUESTION)
    assert desk.prompt(QUESTION, assistant(content), NEXT).tokens[: len(known)] == known


def test_no_block_is_hidden_when_thinking_is_switched_on_in_between() -> None:
    """The reply is still the one that was given behind the block; only the new turn begins without one."""
    desk = Desk(THINKING)
    known = desk.reply(REPLY, QUESTION, template_options_json=NO_THINKING)
    prompt = desk.prompt(QUESTION, assistant(REPLY), NEXT)
    assert prompt.tokens[: len(known)] == known
    assert not desk.spelled(prompt.tokens).endswith(EMPTY_BLOCK)


def test_reasoning_that_was_generated_is_never_hidden() -> None:
    """The template drops it from earlier turns, so the tokens do too: only what stands before the turn is reused."""
    desk = Desk(THINKING)
    start = desk.prompt(QUESTION).tokens
    thought = f"<think>\nhm\n</think>\n\n{REPLY}"
    desk.reply(thought, QUESTION)
    for content in (thought, REPLY):
        prompt = desk.prompt(QUESTION, assistant(content), NEXT)
        assert prompt.tokens[: len(start)] == start
        assert "hm" not in desk.spelled(prompt.tokens)
        assert prompt.canonical is None


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", f"<think>\nhm\n</think>\n\n{REPLY}"),
        Message("assistant", REPLY, reasoning="hm"),
    ],
    ids=["in the content", "in its own field"],
)
def test_reasoning_within_a_tool_loop_is_part_of_the_reply(message: Message) -> None:
    desk = Desk(THINKING)
    known = desk.reply(f"<think>\nhm\n</think>\n\n{REPLY}", QUESTION)
    prompt = desk.prompt(QUESTION, message, Message("tool", "a fox"))
    assert prompt.tokens[: len(known)] == known


def test_reasoning_that_a_client_strips_from_a_tool_loop_is_not_put_back() -> None:
    desk = Desk(THINKING)
    start = desk.prompt(QUESTION).tokens
    desk.reply(f"<think>\nhm\n</think>\n\n{REPLY}", QUESTION)
    prompt = desk.prompt(QUESTION, assistant(REPLY), Message("tool", "a fox"))
    assert prompt.tokens[: len(start)] == start
    assert "hm" not in desk.spelled(prompt.tokens)


def test_a_block_that_a_tool_loop_shows_and_history_does_not_is_found_both_ways() -> None:
    """A template that shows the empty block up to the next user message, as newer ones do."""
    desk = Desk(SHOWING)
    known = desk.reply(REPLY, QUESTION)
    messages = [QUESTION, assistant(REPLY), Message("tool", "a fox")]
    assert desk.prompt(*messages).tokens[: len(known)] == known
    known = desk.reply(f"{REPLY} there", *messages)
    messages.append(assistant(f"{REPLY} there"))
    for following in (Message("tool", "a dog"), NEXT):
        assert desk.prompt(*messages, following).tokens[: len(known)] == known


def conversation(calls: bool) -> tuple[list[Message], list[str]]:
    """Messages, and what the model wrote for each of its own."""
    if calls:
        call = ToolCall("1", "read", '{"path": "the fox", "deep": [1, null]}')
        return [SYSTEM, QUESTION, assistant("", call), Message("tool", "a fox"), assistant(REPLY), NEXT], [
            CALL_TEXT,
            REPLY,
        ]
    return [SYSTEM, QUESTION, assistant(REPLY), NEXT, assistant("there"), QUESTION], [REPLY, "there"]


def is_stable(desk: Desk, calls: bool) -> bool:
    """Whether the tokens of every prompt and its reply begin those of the next prompt."""
    messages, replies = conversation(calls)
    turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
    stable = True
    for turn, reply, following in zip(turns, replies, [*turns[1:], len(messages)], strict=True):
        known = desk.reply(reply, *messages[:turn])
        stable &= desk.prompt(*messages[:following]).tokens[: len(known)] == known
    return stable


# docs/transcripts.md says what is done about these.
UNSTABLE = {"mistral"}
CASES = [(name, calls) for name in KINDS for calls in (False, True) if not (calls and name == "trimming")]


@pytest.mark.parametrize(("name", "calls"), CASES)
def test_each_prompt_begins_the_next_one_except_where_the_list_says_otherwise(name: str, calls: bool) -> None:
    assert is_stable(Desk(KINDS[name]), calls) is (name not in UNSTABLE)


@pytest.mark.model
def test_each_prompt_of_smollm2_begins_the_next_one(smollm2: Path) -> None:
    source = open_gguf(smollm2)
    tokenizer = read_tokenizer(source)
    assert is_stable(Desk(tokenizer=tokenizer, template=read_template(source, tokenizer)), calls=False)


def test_a_template_that_moves_the_system_text_still_shares_what_stands_before_it() -> None:
    desk = Desk(MISTRAL)
    desk.reply(REPLY, SYSTEM, QUESTION)
    first = desk.prompt(SYSTEM, QUESTION).tokens
    second = desk.prompt(SYSTEM, QUESTION, assistant(REPLY), NEXT).tokens
    third = desk.prompt(SYSTEM, QUESTION, assistant(REPLY), NEXT, assistant("there"), QUESTION).tokens
    assert desk.spelled(first[: common(first, second)]) == "<s>[INST]"
    assert common(second, third) > common(first, second)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
