"""Prefix memory on the reference model, which has KV and recurrent state: what is reused, and that it is right."""

from __future__ import annotations

import weakref

import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import CancelReason, GenerateRequest, Message, Started
from engine_rig import SYSTEM, Rig, chat


def rig(blocks: int = 200) -> Rig:
    return Rig(EngineConfig(context_length=2048, exact=True), blocks=blocks, endless=True)


def cold(messages: tuple[Message, ...], **fields: object) -> str:
    fresh = rig()
    fresh.ask("cold", messages, **fields)
    return fresh.text("cold")


def prompt_tokens(engine: Rig, messages: tuple[Message, ...]) -> int:
    return len(engine.prompter.prompt(GenerateRequest("", messages)).tokens)


def test_the_first_request_is_a_cold_rebuild() -> None:
    started = rig().ask("a", chat("one"))
    assert (started.prefix_action, started.cached_tokens, started.cache_miss_reason) == ("rebuild", 0, "cold")


def test_a_branch_finds_the_state_that_another_branch_stored_where_they_part() -> None:
    engine = rig()
    engine.ask("a", chat("alpha"))
    second = engine.ask("b", chat("beta"))
    # The block that it shares most with is that of the second branch; the state at the system text's end is the first's.
    third = engine.ask("c", chat("best"))
    assert third.cached_tokens == second.cached_tokens > len(SYSTEM)
    assert engine.text("c") == cold(chat("best"))


def test_nothing_is_kept_of_a_namespace_whose_blocks_were_evicted() -> None:
    engine = rig(blocks=40)
    engine.ask("first", chat("one"), namespace="salt")
    root = weakref.ref(engine.engine.cache.root("salt"))
    assert root() is not None
    for number in range(12):
        engine.ask(f"other {number}", chat("one"), namespace=f"salt {number}")
    assert not engine.engine.cache.knows("salt")
    assert root() is None


def test_the_next_turn_appends_and_computes_only_what_is_new() -> None:
    engine = rig()
    engine.ask("a", chat("one"))
    reply = engine.text("a")
    following = chat("one", reply, "two")
    started = engine.ask("b", following)
    assert started.prefix_action == "append"
    # All but the last sampled token of the reply is in the cache.
    assert started.cached_tokens == prompt_tokens(engine, chat("one")) + len(reply.encode()) - 1
    assert (started.cache_miss_reason, started.first_difference) == (None, None)
    assert engine.text("b") == cold(following)


def test_the_same_prompt_again_is_a_retry_that_computes_one_token() -> None:
    engine = rig()
    engine.ask("a", chat("one"))
    started = engine.ask("b", chat("one"))
    assert started.prefix_action == "truncate"
    assert started.cached_tokens == prompt_tokens(engine, chat("one")) - 1
    assert engine.text("b") == engine.text("a")


def test_editing_the_last_message_truncates_at_the_difference() -> None:
    engine = rig()
    engine.ask("a", chat("the first question"))
    edited = chat("the first answer")
    started = engine.ask("b", edited)
    assert started.prefix_action == "truncate"
    # The model has recurrent state, which was stored before the user turn and not where the texts part.
    assert started.cache_miss_reason == "no_checkpoint"
    same = engine.prompter.prompt(GenerateRequest("", chat("the first question"))).tokens
    new = engine.prompter.prompt(GenerateRequest("", edited)).tokens
    assert started.first_difference == next(
        i for i, (a, b) in enumerate(zip(same, new, strict=False)) if a != b
    )
    assert engine.text("b") == cold(edited)


def test_another_conversation_with_the_same_system_text_forks() -> None:
    engine = rig()
    engine.ask("a", chat("one", "reply", "and something else entirely"))
    other = chat("a different beginning")
    started = engine.ask("b", other)
    assert started.prefix_action == "fork"
    assert started.cached_tokens >= len(SYSTEM) - 32
    assert engine.text("b") == cold(other)


def test_nothing_is_reused_across_namespaces_and_the_miss_says_cold() -> None:
    engine = rig()
    engine.ask("a", chat("one"), namespace="alice")
    started = engine.ask("b", chat("one"), namespace="bob")
    assert (started.prefix_action, started.cached_tokens, started.cache_miss_reason) == ("rebuild", 0, "cold")
    assert engine.ask("c", chat("one"), namespace="alice").cached_tokens > 0


def test_an_aborted_prefill_is_still_there_for_the_retry() -> None:
    engine = rig()
    engine.config = EngineConfig(context_length=2048, exact=True, min_chunk=64, first_chunk=64, max_chunk=64)
    engine.__post_init__()
    engine.submit("a", messages=chat("x" * 200))
    for _ in range(3):
        engine.engine.step()
    engine.engine.cancel("a", CancelReason.CLIENT)
    engine.run()
    started = engine.ask("b", chat("x" * 200))
    assert started.cached_tokens == 3 * 64
    assert engine.text("b") == cold(chat("x" * 200))


def test_siblings_that_arrive_together_compute_their_common_prefix_once() -> None:
    engine = rig()
    for name in ("a", "b", "c", "d"):
        engine.submit(name, messages=chat(f"sub-agent {name}"))
    engine.run()
    starts = [e for e in engine.events if isinstance(e, Started)]
    assert starts[0].cached_tokens == 0
    assert all(e.cached_tokens > len(SYSTEM) for e in starts[1:])


def test_branches_share_the_blocks_of_their_prefix() -> None:
    engine = rig()
    engine.ask("a", chat("x" * 300), max_new_tokens=2)
    one = engine.engine.cache.blocks.cached
    for number in range(8):
        engine.ask(f"b{number}", chat("x" * 300, "ok", f"branch {number}"), max_new_tokens=2)
    # One tail a branch, of which every one is two blocks at most.
    assert engine.engine.cache.blocks.cached <= one + 8 * 2


def test_blocks_are_evicted_when_room_is_needed_and_system_text_stays_longest() -> None:
    engine = rig(blocks=40)
    engine.ask("a", chat("first " * 40), max_new_tokens=4)
    for number in range(6):
        engine.ask(f"b{number}", chat(f"{number} other " * 40), max_new_tokens=4)
    started = engine.ask("c", chat("first " * 40), max_new_tokens=4)
    assert started.cached_tokens >= len(SYSTEM) // 32 * 32
    assert started.cache_miss_reason in {"evicted", "no_checkpoint", "diverged"}
    assert engine.text("c") == cold(chat("first " * 40), max_new_tokens=4)


def test_a_named_session_continues_under_its_name() -> None:
    engine = rig()
    first = engine.ask("a", chat("one"), session_id="mine")
    second = engine.ask("b", chat("one", engine.text("a"), "two"), session_id="mine")
    assert first.session_id == second.session_id == "mine"
    assert len(engine.engine.conversations) == 1


def test_a_named_session_of_another_namespace_does_not_exist() -> None:
    engine = rig()
    engine.ask("a", chat("one"), session_id="mine", namespace="alice")
    started = engine.ask("b", chat("one"), session_id="mine", namespace="bob")
    assert (started.prefix_action, started.cached_tokens) == ("rebuild", 0)


@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65])
def test_a_prompt_repeated_word_for_word_gives_the_same_text_around_block_borders(length: int) -> None:
    engine = rig()
    prompt = tuple(97 + i % 20 for i in range(length))
    for name in ("a", "b"):
        engine.submit(name, messages=(), prompt=prompt)
        engine.run()
    started = [e for e in engine.events if isinstance(e, Started)][1]
    assert started.cached_tokens == length - 1
    assert engine.text("b") == engine.text("a")
