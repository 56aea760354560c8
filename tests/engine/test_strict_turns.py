"""Conversations as agents send them, and templates that want them otherwise."""

from __future__ import annotations

from itertools import pairwise

import pytest
from agentserve.engine.prompts.prompting import Prompter, PromptError
from agentserve.engine.prompts.strict_turns import arrangements
from agentserve.engine.prompts.templates import ChatTemplate
from agentserve.engine.protocol import GenerateRequest, Message, SamplingParams, ToolCall
from scripted_model import scripted_tokenizer

SYSTEM, LATER = Message("system", "Be brief."), Message("system", "It is late.")
ASK, MORE, SAY = Message("user", "Why?"), Message("user", "And how?"), Message("assistant", "So.")
# Like Mistral's and Gemma's: turns have to alternate.
ALTERNATING = (
    "{% set ns = namespace(turn=0) %}"
    "{% if messages[0].role == 'system' %}{{ 'S:' ~ messages[0].content ~ '|' }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}"
    "{% if m.role == 'tool' %}{{ 'T:' ~ m.content ~ '|' }}{% elif m.tool_calls %}{{ 'C:' ~ m.content ~ '|' }}{% else %}"
    "{% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{{ m.role[0] ~ ':' ~ m.content ~ '|' }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + ALTERNATING
)
FREE = "{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content ~ '|' }}{% endfor %}"


def rendered(template: str, *messages: Message) -> str:
    tokenizer = scripted_tokenizer()
    prompter = Prompter(tokenizer, ChatTemplate(template, {}), SamplingParams(), 1024)
    return tokenizer.decode(prompter.prompt(GenerateRequest("r", messages)).tokens)


def test_a_template_that_takes_everything_gets_the_messages_as_they_are() -> None:
    assert rendered(FREE, SYSTEM, LATER, ASK, MORE, SYSTEM) == (
        "s:Be brief.|s:It is late.|u:Why?|u:And how?|s:Be brief.|"
    )


@pytest.mark.parametrize(
    ("messages", "strict", "without_system"),
    [
        ((SYSTEM, ASK), "S:Be brief.|u:Why?|", "u:Be brief.\n\nWhy?|"),
        ((SYSTEM, LATER, ASK), "S:Be brief.\n\nIt is late.|u:Why?|", "u:Be brief.\n\nIt is late.\n\nWhy?|"),
        ((ASK, MORE), "u:Why?\n\nAnd how?|", "u:Why?\n\nAnd how?|"),
        ((ASK, SAY, SAY, ASK), "u:Why?|a:So.\n\nSo.|u:Why?|", "u:Why?|a:So.\n\nSo.|u:Why?|"),
        (
            (ASK, SAY, LATER, MORE),
            "u:Why?|a:So.|u:It is late.\n\nAnd how?|",
            "u:Why?|a:So.|u:It is late.\n\nAnd how?|",
        ),
    ],
    ids=["plain", "two system messages", "two questions", "two answers", "system in the midst"],
)
def test_a_strict_template_gets_the_same_words_in_fewer_messages(
    messages: tuple[Message, ...], strict: str, without_system: str
) -> None:
    assert rendered(ALTERNATING, *messages) == strict
    assert rendered(NO_SYSTEM, *messages) == without_system


def test_calls_and_results_stay_messages_of_their_own() -> None:
    call = Message("assistant", None, (ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")))
    results = (Message("tool", "a", tool_call_id="1"), Message("tool", "b", tool_call_id="2"))
    assert rendered(ALTERNATING, ASK, MORE, SAY, call, *results, SAY) == (
        "u:Why?\n\nAnd how?|C:So.|T:a|T:b|a:So.|"
    )


def test_a_growing_conversation_keeps_its_beginning() -> None:
    turns = (SYSTEM, ASK, MORE, SAY, LATER, ASK, SAY, MORE)
    texts = [rendered(NO_SYSTEM, *turns[:count]) for count in (3, 4, 6, 7, 8)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))


def test_a_refusal_that_nothing_cures_has_the_words_of_the_template() -> None:
    never = "{{ raise_exception('I take nothing') }}"
    for messages in ((ASK,), (SYSTEM, LATER, ASK)):
        with pytest.raises(
            PromptError, match="the chat template refused the messages: I take nothing"
        ) as caught:
            rendered(never, *messages)
        assert (caught.value.status, caught.value.code) == (400, "template_error")


def test_what_would_change_nothing_is_not_tried() -> None:
    assert [list(one) for one in arrangements((ASK, SAY, MORE))] == [[ASK, SAY, MORE]]
    assert len(list(arrangements((SYSTEM, ASK)))) == 2
