"""Several requests on one engine: whose turn it is, who waits for room, and what ends a request from outside."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import (
    CancelReason,
    Failed,
    Finished,
    Message,
    RequestEvent,
    SamplingParams,
    Started,
    TextDelta,
)
from agentserve.engine.runners.runner import Logits, StepPlan
from engine_rig import Rig


class Clock:
    """Time that passes only in steps: so many seconds for a prompt's step, and for one of a reply."""

    def __init__(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, prefill_s: float = 0.5, decode_s: float = 0.05
    ):
        self.now = 100.0
        self.starts: dict[str, float] = {}
        self.firsts: dict[str, float] = {}
        forward, emit = rig.runner.forward, rig.events.append

        def timed(plan: StepPlan) -> Logits:
            is_prompt = len(plan.slices[0].tokens) > 1
            self.now += prefill_s if is_prompt else decode_s
            return forward(plan)

        def noted(event: RequestEvent) -> None:
            emit(event)
            at = self.starts if isinstance(event, Started) else self.firsts
            if isinstance(event, Started | TextDelta):
                at.setdefault(event.request_id, self.now)

        monkeypatch.setattr(rig.runner, "forward", timed)
        monkeypatch.setattr(rig.engine, "_emit", noted)
        monkeypatch.setattr(rig.engine._replies, "_emit", noted)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


SMALL = EngineConfig(4096, min_chunk=32, first_chunk=64, max_chunk=64)


def ends(rig: Rig) -> list[str]:
    return [event.request_id for event in rig.events if isinstance(event, Finished)]


def step_until(rig: Rig, condition: Callable[[], bool]) -> None:
    while not condition():
        assert rig.engine.step()


def test_a_title_call_does_not_wait_for_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    clock = Clock(rig, monkeypatch)
    rig.submit("long", "x" * 3000, max_new_tokens=2)
    for _ in range(5):
        rig.engine.step()
    asked = clock.now
    rig.submit("title", "what is this about", max_new_tokens=5)
    rig.run()
    assert ends(rig) == ["title", "long"]
    # The rest of a turn, and a step that had begun; then its own prompt of two steps.
    turn, step = SMALL.turn_seconds, 0.5
    assert clock.starts["title"] - asked <= turn + step
    assert clock.firsts["title"] - asked <= turn + step + 2 * step + 0.1


@pytest.mark.parametrize("answers", [7, 12])
def test_a_title_call_waits_for_many_answers_as_for_one(
    monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    clock = Clock(rig, monkeypatch)
    for choice in range(answers):
        rig.submit(f"r{choice}", "tell me something", max_new_tokens=60, choice=choice)
    step_until(rig, lambda: len(clock.firsts) >= 7)
    asked = clock.now
    rig.submit("title", "what is this about", max_new_tokens=5)
    rig.run()
    turn, step = SMALL.turn_seconds, 0.5
    assert clock.starts["title"] - asked <= turn + step
    assert ends(rig)[0] == "title"
    assert len(ends(rig)) == answers + 1


def test_answers_that_do_not_all_fit_the_cache_come_one_after_the_other() -> None:
    rig = Rig(EngineConfig(256, turn_seconds=0.0), blocks=9, endless=True)
    for choice in range(4):
        rig.submit(f"r{choice}", "a" * 20, max_new_tokens=150, choice=choice, session_id="mine")
    rig.run()
    assert sorted(ends(rig)) == ["r0", "r1", "r2", "r3"]
    assert not [event for event in rig.events if isinstance(event, Failed)]


def test_a_session_goes_on_with_the_first_answer() -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    for choice in range(3):
        hot = SamplingParams(temperature=1.0, seed=choice)
        rig.submit(f"r{choice}", "hello", max_new_tokens=20, choice=choice, session_id="mine", sampling=hot)
    rig.run()
    assert len({rig.text(f"r{choice}") for choice in range(3)}) == 3
    (named,) = [one for one in rig.engine.conversations if one.is_named]
    assert rig.tokenizer.decode(named.tokens.tolist()).endswith(rig.text("r0")[:-1])


def test_replies_of_two_conversations_take_turns_and_one_conversation_is_served_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    Clock(rig, monkeypatch)
    for name, text in (("a1", "one"), ("a2", "one"), ("b1", "two")):
        rig.submit(name, text, max_new_tokens=60)
    rig.run()
    order = [event.request_id for event in rig.events if isinstance(event, TextDelta)]
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert order.index("b1") < len(order) - 1 - order[::-1].index("a1")
    assert order.index("a2") > len(order) - 1 - order[::-1].index("a1")
    # Twenty tokens a turn: what a turn is for, and not one token each.
    assert 3 <= changes <= 9


def test_taking_turns_changes_no_text() -> None:
    alone = {}
    for name in "abc":
        rig = Rig(SMALL, blocks=256, endless=True)
        rig.submit(name, f"request {name} " * 20, max_new_tokens=40)
        rig.run()
        alone[name] = rig.text(name)
    rig = Rig(
        EngineConfig(4096, min_chunk=32, first_chunk=64, max_chunk=64, turn_seconds=0.0),
        blocks=256,
        endless=True,
    )
    for name in "abc":
        rig.submit(name, f"request {name} " * 20, max_new_tokens=40)
    rig.run()
    assert {name: rig.text(name) for name in "abc"} == alone


def test_siblings_wait_for_the_prefix_that_one_of_them_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(SMALL, blocks=256)
    Clock(rig, monkeypatch)
    system = Message("system", "the same instructions " * 40)
    for name in ("one", "two", "three"):
        rig.submit(name, messages=(system, Message("user", f"task {name}")), max_new_tokens=3)
    rig.run()
    shared = rig.finished("two").cached_tokens
    assert shared > 800
    assert rig.finished("one").cached_tokens == 0
    assert rig.finished("three").cached_tokens == shared
    prompts = sum(rig.finished(name).prompt_tokens for name in ("one", "two", "three"))
    assert rig.engine.tokens_prefilled == prompts - 2 * shared


def test_a_request_that_finds_no_room_waits_until_another_one_ends() -> None:
    # Room for one of them at a time: 8 blocks of 32 tokens.
    rig = Rig(EngineConfig(256, turn_seconds=0.0), blocks=9, endless=True)
    rig.submit("first", "a" * 20, max_new_tokens=150)
    rig.submit("second", "b" * 20, max_new_tokens=150)
    rig.submit("small", "c" * 5, max_new_tokens=2)
    for _ in range(20):
        rig.engine.step()
    assert [entry.position for entry in rig.engine.progress()] == [0, 1, 2]
    rig.run()
    assert ends(rig) == ["first", "small", "second"]
    assert not [event for event in rig.events if isinstance(event, Failed)]


def test_a_request_that_can_never_have_room_fails_and_the_others_go_on() -> None:
    rig = Rig(EngineConfig(1024), blocks=9, endless=True)
    rig.submit("fits", "a" * 20, max_new_tokens=20)
    rig.submit("huge", "b" * 20, max_new_tokens=900)
    rig.submit("later", "c" * 20, max_new_tokens=20)
    rig.run()
    (failed,) = [event for event in rig.events if isinstance(event, Failed)]
    assert (failed.request_id, failed.code) == ("huge", "kv_over_budget")
    assert ends(rig) == ["fits", "later"]


def test_no_more_conversations_than_may_share_the_engine() -> None:
    rig = Rig(EngineConfig(1024, max_sessions=2, turn_seconds=0.0), blocks=64, endless=True)
    for name in "abcd":
        rig.submit(name, f"request {name}", max_new_tokens=10)
    most = 0
    while rig.engine.step():
        most = max(most, sum(entry.position == 0 for entry in rig.engine.progress()))
    assert most == 2
    assert sorted(ends(rig)) == ["a", "b", "c", "d"]


def test_a_deadline_ends_a_request_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    clock = Clock(rig, monkeypatch)
    # Stamps of the rig say that all of them arrived at 0.
    rig.submit("prefill", "x" * 3000, timeout_s=clock.now + 1.0)
    rig.submit("decode", "short", timeout_s=clock.now + 4.0, max_new_tokens=1000)
    rig.submit("queued", "short", timeout_s=clock.now + 0.1)
    rig.submit("free", "another", max_new_tokens=3)
    rig.run()
    for name in ("prefill", "decode", "queued"):
        assert rig.finished(name).cancel_reason is CancelReason.DEADLINE
    assert rig.finished("queued").completion_tokens == 0
    assert rig.finished("prefill").completion_tokens == 0
    assert rig.finished("decode").completion_tokens > 0
    assert "queued" not in clock.starts
    assert rig.finished("free").finish_reason == "length"
    assert rig.engine.cache.blocks.used == 0


def test_a_cancelled_prompt_keeps_what_was_computed_of_it() -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    rig.submit("first", "x" * 1000, max_new_tokens=2)
    step_until(rig, lambda: rig.engine.tokens_prefilled >= 300)
    rig.engine.cancel("first", CancelReason.CLIENT)
    rig.run()
    computed = rig.engine.tokens_prefilled
    rig.submit("again", "x" * 1000, max_new_tokens=2)
    rig.run()
    assert rig.finished("again").cached_tokens >= computed // 32 * 32


def test_a_step_that_raises_fails_the_request_that_had_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(EngineConfig(1024, turn_seconds=0.0), endless=True)
    rig.submit("one", "one", max_new_tokens=20)
    rig.submit("two", "two", max_new_tokens=20)
    step_until(rig, lambda: bool(rig.text("one")) and bool(rig.text("two")))

    def broken(plan: StepPlan) -> Logits:
        raise MemoryError("no memory for the activations")

    with monkeypatch.context() as patch:
        patch.setattr(rig.runner, "forward", broken)
        with pytest.raises(MemoryError):
            rig.engine.step()
    assert rig.engine.fail_current("internal_error", "failed")
    assert not rig.engine.fail_current("internal_error", "failed")
    rig.run()
    (failed,) = [event for event in rig.events if isinstance(event, Failed)]
    (ended,) = ends(rig)
    assert {failed.request_id, ended} == {"one", "two"}


def test_the_backlog_tells_what_waits_in_tokens_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    Clock(rig, monkeypatch)
    rig.submit("warm", "x" * 500, max_new_tokens=20)
    rig.run()
    assert rig.engine.backlog().requests == 0
    rig.submit("one", "y" * 600, max_new_tokens=10)
    rig.submit("two", "z" * 600, max_new_tokens=1000)
    backlog = rig.engine.backlog()
    tokens = sum(len(s.prompt) for s in rig.engine._known.values())
    assert (backlog.requests, backlog.queued, backlog.queued_tokens) == (2, 2, tokens)
    # 64 tokens in 0.5 s and, for a reply of 20 tokens as the last one was and one of 10, 0.05 s each.
    assert backlog.seconds == pytest.approx(tokens / 128 + 30 * 0.05, rel=0.05)


def test_progress_tells_phase_and_place_of_each_request() -> None:
    rig = Rig(SMALL, blocks=256, endless=True)
    rig.submit("a", "x" * 500, max_new_tokens=50)
    rig.submit("b", "y" * 500, max_new_tokens=50)
    rig.engine.step()
    first, second = rig.engine.progress()
    assert (first.request_id, first.phase, first.position) == ("a", "prefill", 0)
    assert 0 < first.tokens_done < first.tokens_total
    assert (second.request_id, second.phase, second.position, second.tokens_done) == ("b", "queued", 1, 0)
    step_until(rig, lambda: bool(rig.text("a")))
    first = next(entry for entry in rig.engine.progress() if entry.request_id == "a")
    assert (first.phase, first.tokens_done) == ("decode", first.tokens_total)
    assert first.tokens_generated > 0


def test_a_session_that_is_idle_for_too_long_loses_its_name_and_not_its_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(EngineConfig(1024, session_idle_s=10.0))
    rig.submit("a", "x" * 100, session_id="mine")
    rig.run()
    assert rig.engine.conversations.get("", "mine") is not None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 11.0)
    rig.engine.step()
    assert rig.engine.conversations.get("", "mine") is None
    rig.submit("b", "x" * 100, session_id="mine")
    rig.run()
    assert rig.finished("b").cached_tokens >= 96
