"""On request the two texts where a prompt parts from what is known; and no difference where there is none."""

from __future__ import annotations

from pathlib import Path

from agentserve.engine.config import EngineConfig
from agentserve.engine.prefix.differences import MOST_CHARACTERS
from agentserve.engine.protocol import Message, Started
from capsule_rig import CapsuleRig
from engine_rig import SYSTEM, Rig, chat

CONFIG = EngineConfig(context_length=2048, exact=True)


def rig() -> Rig:
    return Rig(CONFIG, blocks=200, endless=True)


def ask(engine: Rig, name: str, messages: tuple[Message, ...], **fields: object) -> Started:
    return engine.ask(name, messages, **{"explain": True, **fields})


def forget_conversations(engine: Rig) -> None:
    for conversation in list(engine.engine.conversations):
        engine.engine.conversations.remove(conversation)


def test_an_edit_shows_what_stood_there_and_what_stands_there_now() -> None:
    engine = rig()
    ask(engine, "a", chat("the first question"))
    started = ask(engine, "b", chat("the second question"))
    difference = started.difference
    assert difference is not None
    assert difference.position == started.first_difference
    assert difference.shared.endswith("the ")
    assert difference.known.startswith("first question")
    assert difference.prompt.startswith("second question")


def test_each_text_is_bounded() -> None:
    engine = rig()
    ask(engine, "a", chat("a" + "x" * 500))
    difference = ask(engine, "b", chat("b" + "y" * 500)).difference
    assert difference is not None
    texts = (difference.shared, difference.known, difference.prompt)
    assert [len(text) for text in texts] == [MOST_CHARACTERS] * 3
    assert difference.known == "a" + "x" * (MOST_CHARACTERS - 1)


def test_a_rebuild_is_compared_with_the_latest_conversation() -> None:
    engine = rig()
    ask(engine, "a", (), prompt="alpha beta" * 10)
    started = ask(engine, "b", (), prompt="gamma delta" * 10)
    assert (started.prefix_action, started.cache_miss_reason) == ("rebuild", "diverged_at_start")
    assert started.difference is not None
    assert (started.difference.position, started.difference.shared) == (0, "")
    assert started.difference.known.startswith("alpha beta")
    assert started.difference.prompt.startswith("gamma delta")


def test_what_the_pool_knows_beyond_all_conversations_is_shown_too() -> None:
    engine = rig()
    ask(engine, "a", chat("the first question"))
    forget_conversations(engine)
    difference = ask(engine, "b", chat("the second question")).difference
    assert difference is not None
    assert difference.known.startswith("first question")


def test_nothing_is_shown_to_others() -> None:
    engine = rig()
    ask(engine, "a", chat("a secret question"), namespace="alice")
    ask(engine, "b", chat("something"), namespace="bob")
    started = ask(engine, "c", chat("an open question"), namespace="bob")
    assert started.difference is not None
    assert "secret" not in started.difference.known
    assert ask(engine, "d", chat("x"), namespace="carol").difference is None


def test_nothing_is_shown_without_being_asked_for() -> None:
    engine = rig()
    ask(engine, "a", chat("the first question"))
    assert ask(engine, "b", chat("the second question"), explain=False).difference is None


def test_a_prompt_that_goes_on_where_a_restored_text_ends_has_not_diverged(tmp_path: Path) -> None:
    first = CapsuleRig(CONFIG, blocks=200, endless=True, folder=tmp_path)
    first.ask("a", chat("one"))
    started = first.restarted().ask("b", chat("one", first.text("a"), "two"))
    assert started.prefix_action == "restore"
    assert (started.cache_miss_reason, started.first_difference) == (None, None)


def test_a_prompt_that_goes_on_where_the_pool_ends_has_not_diverged() -> None:
    engine = rig()
    ask(engine, "a", chat("one"))
    forget_conversations(engine)
    started = ask(engine, "b", chat("one", engine.text("a"), "two"))
    assert started.cached_tokens > len(SYSTEM)
    assert (started.cache_miss_reason, started.first_difference) == (None, None)


def test_a_prompt_that_parts_from_a_restored_text_has_diverged(tmp_path: Path) -> None:
    first = CapsuleRig(CONFIG, blocks=200, endless=True, folder=tmp_path)
    first.ask("a", chat("one question " * 8))
    started = first.restarted().ask("b", chat("one question " * 4 + "and another"))
    assert started.prefix_action == "restore"
    assert started.first_difference is not None
