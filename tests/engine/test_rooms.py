from __future__ import annotations

from itertools import permutations

from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import CancelReason, Failed, Finished, TextDelta
from agentserve.engine.scheduling.rooms import Claim, is_safe
from engine_rig import Rig
from hypothesis import given, settings
from hypothesis import strategies as st


def in_some_order(available: int, claims: list[Claim]) -> bool:
    """The definition, tried out."""
    for order in permutations(claims):
        left = available
        for claim in order:
            if claim.wanted > left:
                break
            left += claim.held
        else:
            return True
    return False


@given(st.integers(0, 20), st.lists(st.builds(Claim, st.integers(0, 9), st.integers(0, 20)), max_size=5))
def test_safe_is_what_can_be_brought_to_an_end_in_some_order(available: int, claims: list[Claim]) -> None:
    assert is_safe(available, claims) == in_some_order(available, claims)


def config(**fields: float) -> EngineConfig:
    return EngineConfig(512, turn_seconds=0.0, reply_room=32, **fields)  # type: ignore[arg-type]


def ends(rig: Rig) -> list[str]:
    return [event.request_id for event in rig.events if isinstance(event, Finished)]


def test_a_reply_takes_room_as_it_grows() -> None:
    rig = Rig(config(), blocks=20, endless=True)
    rig.submit(text="x" * 20, max_new_tokens=None)
    used = []
    while rig.engine.step():
        used.append(rig.engine.cache.blocks.used)
    assert used[0] <= 4
    assert max(used) == 16
    assert rig.finished().finish_reason == "length"
    assert rig.finished().prompt_tokens + rig.finished().completion_tokens == 512
    rig.run()


def test_a_short_question_does_not_drive_out_what_is_remembered() -> None:
    # It names no limit, so it might fill the context, which is nearly all of the pool.
    rig = Rig(config(), blocks=18)
    rig.submit("long", "y" * 300, max_new_tokens=2)
    rig.run()
    rig.submit("short", "hello", max_new_tokens=None)
    rig.run()
    rig.submit("again", "y" * 300, max_new_tokens=2)
    rig.run()
    assert rig.finished("again").cached_tokens >= rig.finished("again").prompt_tokens - 32


def test_two_open_ended_requests_take_turns_in_a_pool_that_is_too_small_for_both() -> None:
    # One needs 17 blocks at its longest.
    rig = Rig(config(), blocks=24, endless=True)
    rig.submit("one", "a" * 20, max_new_tokens=None)
    rig.submit("two", "b" * 20, max_new_tokens=None)
    rig.run()
    order = [event.request_id for event in rig.events if isinstance(event, TextDelta)]
    assert order.index("two") < len(order) // 4
    assert sorted(ends(rig)) == ["one", "two"]
    assert rig.finished("two").completion_tokens == rig.finished("one").completion_tokens


def test_a_request_that_waits_to_grow_can_be_cancelled() -> None:
    rig = Rig(config(), blocks=24, endless=True)
    rig.submit("one", "a" * 20, max_new_tokens=None)
    rig.submit("two", "b" * 20, max_new_tokens=None)
    while rig.engine.cache.blocks.available:
        rig.engine.step()
        if (
            len(rig.text("one")) > len(rig.text("two")) + 50
            or len(rig.text("two")) > len(rig.text("one")) + 50
        ):
            break
    waits = min(("one", "two"), key=lambda name: len(rig.text(name)))
    rig.engine.cancel(waits, CancelReason.API)
    rig.run()
    assert rig.finished(waits).cancel_reason is CancelReason.API
    assert len(ends(rig)) == 2


REQUESTS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 90)), min_size=2, max_size=6)


@settings(max_examples=25, deadline=None)
@given(REQUESTS, st.integers(17, 40))
def test_whatever_fits_alone_comes_to_its_end_beside_others(
    requests: list[tuple[int, int]], blocks: int
) -> None:
    rig = Rig(config(), blocks=blocks, endless=True)
    for number, (prompt, reply) in enumerate(requests):
        rig.submit(f"{number}", f"{number}" * prompt, max_new_tokens=reply)
    rig.run()
    assert len(ends(rig)) == len(requests)
    assert not [event for event in rig.events if isinstance(event, Failed)]
    assert rig.engine.cache.blocks.used == 0
