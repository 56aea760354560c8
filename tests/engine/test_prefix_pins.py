"""Pins that requests ask for: the length, the budget, what is computed for them, and what is left when they fail."""

from __future__ import annotations

import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import (
    Accepted,
    CancelReason,
    Finished,
    GenerateRequest,
    Message,
    Pin,
    PinRefused,
    PrefixPin,
    PrefixPinned,
    Rejected,
    Started,
)
from capsule_rig import CapsuleRig
from engine_rig import SYSTEM, chat

CONFIG = EngineConfig(context_length=2048, exact=True)
BLOCK = 32


def rig(**fields: object) -> CapsuleRig:
    return CapsuleRig(**{"config": CONFIG, "blocks": 200, "endless": True, **fields})  # type: ignore[arg-type]


def length(engine: CapsuleRig, messages: tuple[Message, ...]) -> int:
    return len(engine.prompter.prompt(GenerateRequest("", messages)).tokens)


def pinned(engine: CapsuleRig, name: str) -> PrefixPinned:
    result = engine.finished(name).pin
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("asked", "expected"), [(32, 32), (95, 64), (96, 96), (10**6, None), (None, None)], ids=str
)
def test_the_first_tokens_are_pinned_in_whole_blocks(asked: int | None, expected: int | None) -> None:
    engine = rig()
    prompt = chat("one")
    engine.ask("a", prompt, pin=PrefixPin(asked))
    whole = length(engine, prompt) // BLOCK * BLOCK
    (pin,) = engine.pins().pins
    assert pinned(engine, "a") == PrefixPinned(expected or whole, pin.name)
    assert (pin.tokens, pin.tier) == (expected or whole, "pool")


def test_the_answer_is_the_one_without_a_pin_and_the_next_request_finds_it() -> None:
    plain, engine = rig(), rig()
    plain.ask("a", chat("one"))
    engine.ask("a", chat("one"), pin=PrefixPin(256))
    assert engine.text("a") == plain.text("a")
    started = engine.ask("b", (Message("system", SYSTEM), Message("user", "two")))
    assert started.cached_tokens >= 256
    assert engine.pins().pins[0].hits == 1


def test_a_prompt_of_less_than_a_block_is_answered_and_not_pinned() -> None:
    engine = rig()
    engine.ask("a", chat("one"), pin=PrefixPin(31))
    assert pinned(engine, "a") == PrefixPinned(skipped="short")
    assert engine.pins().pins == ()


def test_the_same_prefix_is_one_pin_however_often_it_is_asked_for() -> None:
    engine = rig()
    for name in ("a", "b", "c"):
        engine.ask(name, chat(name), pin=PrefixPin(256))
    assert len({pinned(engine, name).name for name in ("a", "b", "c")}) == 1
    (pin,) = engine.pins().pins
    assert pin.hits == 2


@pytest.mark.parametrize("asked", [64, 300])
def test_a_pin_within_a_known_prefix_has_the_recurrent_state_at_its_end(asked: int) -> None:
    engine = rig(blocks=40)
    engine.ask("a", chat("one"))
    engine.ask("b", chat("one"), pin=PrefixPin(asked))
    end = asked // BLOCK * BLOCK
    for number in range(6):
        engine.ask(f"c{number}", (Message("user", f"{number} other " * 70),), max_new_tokens=4)
    # Only the pin is left of it: all of it can be continued.
    prompt = engine.prompter.prompt(GenerateRequest("", chat("one"))).tokens[:end]
    started = engine.ask("d", (), prompt=(*prompt, *b"!something else"))
    assert started.cached_tokens == end
    cold = rig()
    cold.ask("d", (), prompt=(*prompt, *b"!something else"))
    assert engine.text("d") == cold.text("d")


def test_over_budget_is_refused_before_any_work() -> None:
    engine = rig(pin_bytes=20_000)
    engine.submit("a", messages=chat("one"), pin=PrefixPin())
    engine.run()
    (refused,) = engine.events
    assert isinstance(refused, Rejected)
    assert (refused.status, refused.code, refused.param) == (
        503,
        "capsule_over_budget",
        "agentserve_pin_prefix",
    )
    assert refused.free_bytes == 20_000
    assert refused.wanted_bytes == engine.engine.capsules._size(length(engine, chat("one")) // BLOCK * BLOCK)
    assert engine.engine.tokens_prefilled == engine.engine.load == 0
    assert engine.engine.cache.blocks.free == 200


def test_best_effort_over_budget_is_answered_and_says_so() -> None:
    engine = rig(pin_bytes=20_000)
    engine.ask("a", chat("one"), pin=PrefixPin(best_effort=True))
    assert pinned(engine, "a") == PrefixPinned(rejected="capsule_over_budget")
    assert engine.finished("a").finish_reason == "length"


def test_without_a_budget_a_pin_is_refused_as_switched_off() -> None:
    engine = rig(pin_bytes=0)
    engine.submit("a", messages=chat("one"), pin=PrefixPin())
    engine.run()
    (refused,) = engine.events
    assert isinstance(refused, Rejected)
    assert (refused.status, refused.code) == (400, "capsules_disabled")


def test_two_pins_on_their_way_can_t_both_have_the_last_room() -> None:
    engine = rig()
    room = engine.engine.capsules._size(288)
    engine = rig(pin_bytes=room + 5000)
    for name in ("a", "b"):
        engine.submit(name, messages=(Message("user", name + "x" * 320),), pin=PrefixPin(288))
    engine.run()
    refused = [e for e in engine.events if isinstance(e, Rejected)]
    assert [(e.request_id, e.free_bytes) for e in refused] == [("b", 5000)]
    assert pinned(engine, "a").tokens == 288
    assert engine.pins().used_bytes <= room


@pytest.mark.parametrize("steps", [0, 1])
def test_what_a_cancelled_request_has_booked_is_free_again(steps: int) -> None:
    room = rig().engine.capsules._size(288)
    engine = rig(pin_bytes=room)
    engine.submit("a", messages=(Message("user", "a" + "x" * 320),), pin=PrefixPin(288))
    for _ in range(steps):
        engine.engine.step()
    engine.engine.cancel("a", CancelReason.CLIENT)
    engine.run()
    assert pinned_or_none(engine, "a") is None
    engine.ask("b", (Message("user", "b" + "x" * 320),), pin=PrefixPin(288))
    assert pinned(engine, "b").tokens == 288


def pinned_or_none(engine: CapsuleRig, name: str) -> PrefixPinned | None:
    return engine.finished(name).pin


def test_a_named_pin_waits_for_no_room_that_a_request_has_booked() -> None:
    room = rig().engine.capsules._size(288)
    engine = rig(pin_bytes=room)
    engine.submit("a", messages=(Message("user", "a" + "x" * 320),), pin=PrefixPin(288))
    request = GenerateRequest("", (Message("user", "b" + "x" * 320),))
    refused = engine.pin(Pin("p", "mine", request=request, tokens=288), PinRefused)
    assert refused.code == "capsule_over_budget"


def test_the_request_is_accepted_once_the_room_is_booked() -> None:
    engine = rig()
    accepted = Accepted("a", 1, 1, False, 0, 0.0)
    engine.submit("a", messages=chat("one"), pin=PrefixPin())
    engine.engine._known["a"].admission = accepted
    engine.run()
    kinds = [type(event) for event in engine.events]
    assert kinds[:2] == [Accepted, Started]
    assert kinds[-1] is Finished
