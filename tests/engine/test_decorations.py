"""Headers that clients put before the system text are dropped, and nothing else is."""

from __future__ import annotations

import logging

import pytest
from agentserve.engine.prompts.decorations import Decorations
from agentserve.engine.protocol import GenerateRequest, LoadModel, Message
from engine_rig import Rig

HEADER = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=cli; cch=f3a1;"
USER = Message("user", "hi")


def system(*texts: str) -> list[str | None]:
    """What is left of system messages with these texts."""
    stripped = Decorations().strip([*(Message("system", text) for text in texts), USER])
    assert stripped[-1] == USER
    return [message.content for message in stripped[:-1]]


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        ([HEADER, "You are an agent."], ["You are an agent."]),
        ([HEADER + "\nYou are an agent."], ["You are an agent."]),
        ([HEADER + "\r\n\r\n  You are an agent."], ["  You are an agent."]),
        # Two parts of one message, which dialects join.
        ([HEADER + "You are an agent."], ["You are an agent."]),
        (["x-anthropic-note: anything at all\nYou are an agent."], ["You are an agent."]),
        ([HEADER + "\n" + HEADER + "\nYou are an agent."], ["You are an agent."]),
        ([HEADER], []),
    ],
)
def test_leading_headers_are_dropped(texts: list[str], left: list[str]) -> None:
    assert system(*texts) == left


@pytest.mark.parametrize(
    "text",
    [
        "You are an agent.\n" + HEADER,
        " " + HEADER,
        "X-Anthropic-Billing-Header: a=b;",
        "x-anthropic: a=b;",
        "x-other-billing-header: a=b;",
        "The header x-anthropic-billing-header: a=b;",
        "",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert system(text) == [text]


def test_only_system_messages_at_the_beginning_are_looked_at() -> None:
    messages = (Message("system", "a"), Message("user", HEADER), Message("system", HEADER + "b"))
    assert Decorations().strip(messages) == messages


def test_a_conversation_of_nothing_but_a_header_keeps_an_empty_message() -> None:
    assert Decorations().strip([Message("system", HEADER)]) == (Message("system", ""),)


def test_switched_off_it_changes_nothing() -> None:
    messages = (Message("system", HEADER), USER)
    assert Decorations(enabled=False).strip(messages) == messages


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rule = Decorations()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            rule.strip([Message("system", HEADER), USER])
    assert len(caplog.records) == 1
    assert "--no-strip-decorations" in caplog.text
    assert "f3a1" not in caplog.text


def test_two_sessions_with_different_headers_have_the_same_tokens() -> None:
    prompter = Rig().prompter
    first, second = (
        prompter.prompt(
            GenerateRequest("r", (Message("system", HEADER.format(i)), Message("system", "Be brief."), USER))
        )
        for i in ("abc", "def")
    )
    assert first.tokens == second.tokens
    assert first.stable == second.stable > 0


@pytest.mark.parametrize("strip", [True, False])
def test_a_worker_is_told_whether_to_strip(strip: bool) -> None:
    from agentserve.engine.loading import load

    model = load(LoadModel("reference", None, strip_decorations=strip), lambda stage: None)
    prompt = model.prompter.prompt(GenerateRequest("r", (Message("system", HEADER), USER)))
    assert ("billing" in model.prompter.tokenizer.decode(prompt.tokens)) is not strip
