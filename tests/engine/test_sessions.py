"""Sessions on the reference model: listed, forked, cut and forgotten, and never one by a request of another."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.messages.sessions import (
    DeleteSession,
    ForkSession,
    ListSessions,
    SessionDone,
    SessionInfo,
    SessionList,
    SessionRefused,
    TruncateSession,
)
from agentserve.engine.protocol import (
    CancelReason,
    GenerateRequest,
    Message,
    SessionAnswer,
    SessionCommand,
)
from capsule_rig import CapsuleRig
from engine_rig import SYSTEM, Rig, chat

CONFIG = EngineConfig(context_length=2048, exact=True)
Answer = TypeVar("Answer", SessionList, SessionDone, SessionRefused)


def rig(blocks: int = 200) -> Rig:
    return Rig(CONFIG, blocks=blocks, endless=True)


def cold(messages: tuple[Message, ...], **fields: object) -> str:
    fresh = rig()
    fresh.ask("cold", messages, **fields)
    return fresh.text("cold")


def answer(engine: Rig, command: SessionCommand, kind: type[Answer]) -> Answer:
    engine.engine.ask(command)
    engine.run()
    said: SessionAnswer = engine.events[-1]  # type: ignore[assignment]
    assert isinstance(said, kind), said
    return said


def sessions(
    engine: Rig, namespace: str | None = None, session_id: str | None = None
) -> tuple[SessionInfo, ...]:
    return answer(engine, ListSessions("list", namespace, session_id), SessionList).sessions


def tokens(engine: Rig, messages: tuple[Message, ...]) -> tuple[int, ...]:
    return engine.prompter.prompt(GenerateRequest("", messages)).tokens


# ---- what is listed


def test_a_session_says_what_it_holds_and_what_happened_last() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine")
    engine.ask("b", chat("one", engine.text("a"), "two"), session_id="mine")
    (mine,) = sessions(engine)
    assert (mine.id, mine.last_action, mine.turns, mine.hits, mine.running) == ("mine", "append", 2, 1, 0)
    # All but the token that was sampled last is computed.
    prompt = len(tokens(engine, chat("one", engine.text("a"), "two")))
    assert mine.tokens == prompt + engine.finished("b").completion_tokens - 1
    geometry = engine.runner.geometry
    assert mine.bytes == -(-mine.tokens // 32) * geometry.block_bytes
    assert (mine.tier, mine.pool_tokens) == ("pool", mine.tokens // 32 * 32)
    assert mine.created <= mine.last_used


def test_the_latest_comes_first_and_namespaces_are_apart() -> None:
    engine = rig()
    for name in ("a", "b"):
        engine.ask(name, chat(name), session_id=name)
    engine.ask("c", chat("c"), session_id="a", namespace="other")
    assert [(one.id, one.namespace) for one in sessions(engine)] == [("a", "other"), ("b", ""), ("a", "")]
    assert [one.id for one in sessions(engine, namespace="")] == ["b", "a"]
    assert [one.namespace for one in sessions(engine, session_id="a")] == ["other", ""]


def test_a_session_whose_blocks_were_evicted_is_lost_and_may_still_be_named() -> None:
    engine = rig(blocks=40)
    engine.ask("a", chat("first " * 40), session_id="old", max_new_tokens=4)
    for number in range(4):
        engine.ask(f"b{number}", (Message("user", f"{number} other " * 70),), max_new_tokens=4)
    (old,) = sessions(engine, session_id="old")
    assert old.tier in {"part", "lost"}
    assert old.pool_tokens < old.tokens // 32 * 32
    assert engine.ask("c", chat("first " * 40), session_id="old", max_new_tokens=4).session_id == "old"
    assert engine.text("c") == cold(chat("first " * 40), max_new_tokens=4)


def test_a_session_that_the_pool_lost_is_found_on_disk(tmp_path: Path) -> None:
    engine = CapsuleRig(CONFIG, blocks=40, endless=True, folder=tmp_path)
    engine.ask("a", chat("first " * 40), session_id="old", max_new_tokens=4)
    for number in range(4):
        engine.ask(f"b{number}", (Message("user", f"{number} other " * 70),), max_new_tokens=4)
    (old,) = sessions(engine, session_id="old")
    assert old.tier == "disk"


# ---- forks


def test_a_fork_goes_on_by_itself_and_shares_the_blocks() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="trunk")
    before = engine.engine.cache.blocks.cached
    made = answer(engine, ForkSession("f", "trunk", new_id="branch"), SessionDone).session
    assert engine.engine.cache.blocks.cached == before
    trunk, branch = sessions(engine, session_id="trunk")[0], sessions(engine, session_id="branch")[0]
    assert (made.id, made.last_action, made.tokens) == ("branch", "fork", trunk.tokens)
    following = chat("one", engine.text("a"), "and then?")
    started = engine.ask("b", following, session_id="branch")
    assert (started.prefix_action, started.session_id) == ("append", "branch")
    assert started.cached_tokens == branch.tokens
    assert engine.text("b") == cold(following)
    assert sessions(engine, session_id="trunk") == (trunk,)


def test_a_retry_of_one_branch_leaves_the_other_as_it_was() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="trunk")
    answer(engine, ForkSession("f", "trunk", new_id="branch"), SessionDone)
    (branch,) = sessions(engine, session_id="branch")
    edited = chat("another question")
    started = engine.ask("b", edited, session_id="trunk")
    assert (started.prefix_action, started.session_id) == ("truncate", "trunk")
    assert sessions(engine, session_id="branch") == (branch,)
    following = chat("one", engine.text("a"), "two")
    again = engine.ask("c", following, session_id="branch")
    assert (again.prefix_action, again.cached_tokens) == ("append", branch.tokens)
    assert engine.text("b") == cold(edited)
    assert engine.text("c") == cold(following)


def test_a_request_without_a_name_goes_on_with_the_original_and_not_with_its_fork() -> None:
    engine = rig()
    original = engine.ask("a", chat("one")).session_id
    assert original is not None
    answer(engine, ForkSession("f", original), SessionDone)
    assert engine.ask("b", chat("one", engine.text("a"), "two")).session_id == original


def test_a_name_that_is_new_starts_a_session_and_leaves_the_one_with_the_same_text() -> None:
    engine = rig()
    first = engine.ask("a", chat("one")).session_id
    started = engine.ask("b", chat("one", engine.text("a"), "two"), session_id="new")
    assert (started.prefix_action, started.session_id) == ("fork", "new")
    assert started.cached_tokens > len(SYSTEM)
    assert {one.id for one in sessions(engine)} == {first, "new"}


def test_a_fork_under_a_name_that_exists_is_refused() -> None:
    engine = rig()
    for name in ("a", "b"):
        engine.ask(name, chat(name), session_id=name)
    before = sessions(engine)
    refused = answer(engine, ForkSession("f", "a", new_id="b"), SessionRefused)
    assert (refused.status, refused.code, refused.param) == (409, "session_exists", "session_id")
    assert sessions(engine) == before


# ---- cuts


def test_after_a_cut_the_next_request_extends_what_was_left() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine")
    # The model has recurrent state, which was stored behind the system text.
    end = engine.prompter.prompt(GenerateRequest("", chat("one"))).stable + 5
    cut = answer(engine, TruncateSession("t", "mine", tokens=end), SessionDone).session
    assert (cut.tokens, cut.last_action) == (end, "truncate")
    prompt = (*tokens(engine, chat("one"))[:end], *b"!something else that follows")
    started = engine.ask("b", (), prompt=prompt, session_id="mine")
    assert (started.prefix_action, started.first_difference) == ("append", None)
    assert (started.cached_tokens, started.cache_miss_reason) == (end - 5, "no_checkpoint")
    assert engine.text("b") == cold((), prompt=prompt)


def test_a_cut_session_is_what_its_next_request_is_compared_with_whatever_others_hold() -> None:
    engine = rig()
    engine.ask("a", chat("one question"), session_id="trunk")
    answer(engine, ForkSession("f", "trunk", new_id="branch"), SessionDone)
    answer(engine, TruncateSession("t", "branch", drop_turns=1), SessionDone)
    started = engine.ask("b", chat("one answer"), session_id="branch")
    assert (started.prefix_action, started.session_id) == ("append", "branch")
    assert started.first_difference is None


def test_dropping_the_last_turn_is_an_undo() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine")
    second = chat("one", engine.text("a"), "two")
    engine.ask("b", second, session_id="mine")
    turn_start = engine.prompter.prompt(GenerateRequest("", second)).turn_start
    cut = answer(engine, TruncateSession("t", "mine", drop_turns=1), SessionDone).session
    assert (cut.tokens, cut.turns) == (turn_start, 1)
    other = chat("one", engine.text("a"), "instead of two")
    started = engine.ask("c", other, session_id="mine")
    assert started.prefix_action == "append"
    assert engine.text("c") == cold(other)


def test_cutting_one_branch_takes_nothing_from_the_other() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="trunk")
    answer(engine, ForkSession("f", "trunk", new_id="branch"), SessionDone)
    answer(engine, TruncateSession("t", "trunk", tokens=40), SessionDone)
    (branch,) = sessions(engine, session_id="branch")
    assert branch.tokens > 300
    started = engine.ask("b", chat("one", engine.text("a"), "two"), session_id="branch")
    assert started.cached_tokens == branch.tokens


@pytest.mark.parametrize(
    ("wish", "param"),
    [({"tokens": 0}, "tokens"), ({"tokens": 10**6}, "tokens"), ({"drop_turns": 2}, "drop_turns")],
)
def test_a_cut_to_more_than_there_is_names_the_limit(wish: dict[str, int], param: str) -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine")
    (before,) = sessions(engine)
    refused = answer(engine, TruncateSession("t", "mine", **wish), SessionRefused)
    assert (refused.status, refused.code, refused.param) == (400, "invalid_value", param)
    assert str(before.tokens if param == "tokens" else 1) in refused.message
    assert sessions(engine) == (before,)


# ---- ends


def test_a_session_that_is_forgotten_leaves_what_was_computed() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine")
    gone = answer(engine, DeleteSession("d", "mine"), SessionDone).session
    assert (gone.id, sessions(engine)) == ("mine", ())
    started = engine.ask("b", chat("one"))
    assert (started.prefix_action, started.cached_tokens) == ("exact", len(tokens(engine, chat("one"))) - 1)


@pytest.mark.parametrize(
    "command",
    [ForkSession("x", "no"), TruncateSession("x", "no", tokens=1), DeleteSession("x", "no")],
)
def test_a_session_that_does_not_exist_is_refused(command: SessionCommand) -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="no", namespace="other")
    refused = answer(engine, command, SessionRefused)
    assert (refused.status, refused.code) == (404, "session_not_found")


def test_a_running_session_is_neither_cut_nor_forgotten_but_may_be_forked() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine")
    (before,) = sessions(engine)
    engine.submit("b", messages=chat("one", engine.text("a"), "two"), session_id="mine")
    engine.engine.step()
    for command in (TruncateSession("t", "mine", tokens=40), DeleteSession("d", "mine")):
        engine.engine.ask(command)
        engine.engine.step()
        refused = [e for e in engine.events if isinstance(e, SessionRefused)][-1]
        assert (refused.status, refused.code) == (409, "session_busy")
    engine.engine.ask(ForkSession("f", "mine", new_id="branch"))
    engine.engine.step()
    made = next(e for e in engine.events if isinstance(e, SessionDone)).session
    assert made.tokens == before.tokens
    engine.engine.cancel("b", CancelReason.CLIENT)
    engine.run()
    answer(engine, DeleteSession("d", "mine"), SessionDone)


def test_sessions_that_run_are_kept_beyond_the_limit() -> None:
    engine = rig()
    engine.engine.conversations.limit = 2
    engine.submit("a", messages=chat("one"), session_id="runs", max_new_tokens=200)
    engine.engine.step()
    for number in range(3):
        engine.engine.conversations.record(None, "", f"n{number}", "rebuild")
    for number in range(3):
        other = engine.engine.conversations.get("", f"n{number}")
        assert other is not None
        engine.engine.conversations.ended(other, [1], (), 0)
    assert engine.engine.conversations.get("", "runs") is not None
    assert len(engine.engine.conversations) == 2
    engine.run()
