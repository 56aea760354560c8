from __future__ import annotations

import numpy as np
import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.prompts.prompting import PromptError
from agentserve.engine.protocol import CancelReason, SamplingParams, Started, TextDelta
from agentserve.engine.runners.runner import Logits, StepPlan
from engine_rig import GREEDY, Rig

# Temperature 0.8 with a fixed seed: the reference model's greedy text soon repeats itself.
SEEDED = SamplingParams(temperature=0.8, seed=5)


def reply(request_text: str = "hello", config: EngineConfig | None = None, **fields: object) -> str:
    rig = Rig(config or EngineConfig(context_length=1024), endless=True)
    rig.submit(text=request_text, **fields)
    rig.run()
    return rig.text()


def test_a_request_streams_its_text_and_ends_once() -> None:
    rig = Rig()
    rig.submit()
    rig.run()
    end = rig.finished()
    assert isinstance(rig.events[0], Started)
    assert rig.events[-1] is end
    assert rig.text()
    assert sum(e.tokens for e in rig.events if isinstance(e, TextDelta)) <= end.completion_tokens


def test_the_token_limit_is_the_number_of_tokens_sampled() -> None:
    rig = Rig(endless=True)
    rig.submit(max_new_tokens=7, sampling=SEEDED)
    rig.run()
    assert (rig.finished().finish_reason, rig.finished().completion_tokens) == ("length", 7)


def test_an_end_of_turn_token_stops_and_is_not_shown() -> None:
    rig = Rig()
    rig.submit(max_new_tokens=500, sampling=SamplingParams(temperature=1.0, seed=2))
    rig.run()
    assert rig.finished().finish_reason == "stop"
    assert "<|im_end|>" not in rig.text()
    assert rig.finished().completion_tokens == len(rig.text().encode()) + 1


@pytest.mark.parametrize("chunk", [2, 3, 5, 64])
@pytest.mark.parametrize("exact", [False, True])
def test_the_text_does_not_depend_on_how_the_prompt_is_cut_into_chunks(chunk: int, exact: bool) -> None:
    config = EngineConfig(1024, exact, min_chunk=chunk, first_chunk=chunk, max_chunk=chunk)
    assert reply("a longer prompt " * 9, config) == reply("a longer prompt " * 9)


def test_exact_mode_never_runs_a_single_row() -> None:
    rig = Rig(EngineConfig(1024, exact=True, min_chunk=8, first_chunk=8, max_chunk=8))
    rig.submit(text="x" * 40)
    rig.run()
    assert min(len(part.tokens) for plan in rig.runner.plans for part in plan.slices) == 2


def test_only_the_row_that_gives_a_token_goes_through_the_head() -> None:
    rig = Rig(EngineConfig(1024, min_chunk=8, first_chunk=8, max_chunk=8))
    rig.submit(text="x" * 40, max_new_tokens=1)
    rig.run()
    assert [plan.total_rows for plan in rig.runner.plans] == [0] * (len(rig.runner.plans) - 1) + [1]


def test_a_stop_string_is_cut_out_wherever_tokens_split_it() -> None:
    whole = reply(sampling=SEEDED, max_new_tokens=30)
    stop = whole[9:14]
    rig = Rig(endless=True)
    rig.submit(sampling=SEEDED, max_new_tokens=30, stop=(stop,))
    rig.run()
    assert rig.text() == whole[: whole.index(stop)]
    assert (rig.finished().finish_reason, rig.finished().stop_string) == ("stop", stop)


def test_the_beginning_of_a_stop_string_is_released_when_the_reply_ends() -> None:
    whole = reply(sampling=SEEDED, max_new_tokens=12)
    assert reply(sampling=SEEDED, max_new_tokens=12, stop=(whole[-3:] + "\x00",)) == whole


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    one, again = (reply(sampling=SamplingParams(temperature=1.0, seed=11)) for _ in range(2))
    other = reply(sampling=SamplingParams(temperature=1.0, seed=12))
    assert one == again
    assert one != other


def test_requests_run_in_the_order_of_their_arrival() -> None:
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.submit(name, text=f"request {name}")
    rig.run()
    assert [e.request_id for e in rig.events if isinstance(e, Started)] == ["a", "b", "c"]


def test_the_text_does_not_depend_on_who_else_is_served() -> None:
    alone = reply("request b")
    rig = Rig(endless=True)
    for name in ("a", "b", "c"):
        rig.submit(name, text=f"request {name}")
    rig.run()
    assert rig.text("b") == alone


def test_a_cancel_takes_effect_at_the_next_step_and_frees_everything() -> None:
    rig = Rig()
    rig.submit(max_new_tokens=500)
    for _ in range(5):
        rig.engine.step()
    rig.engine.cancel("r", CancelReason.CLIENT)
    steps = len(rig.runner.plans)
    rig.run()
    assert len(rig.runner.plans) == steps
    assert rig.finished().cancel_reason is CancelReason.CLIENT
    assert rig.engine.cache.blocks.used == 0


def test_a_queued_request_that_is_cancelled_never_reaches_the_runner() -> None:
    rig = Rig()
    rig.submit("first", max_new_tokens=3)
    rig.submit("gone", text="never seen")
    rig.engine.cancel("gone", CancelReason.API)
    rig.run()
    assert [e.request_id for e in rig.events if isinstance(e, Started)] == ["first"]
    assert rig.finished("gone").completion_tokens == 0


def test_cancelling_an_unknown_request_changes_nothing() -> None:
    rig = Rig()
    rig.submit()
    rig.engine.cancel("somebody else", CancelReason.API)
    rig.run()
    assert rig.finished().finish_reason in {"stop", "length"}


def test_shutdown_ends_running_and_queued_requests() -> None:
    rig = Rig()
    rig.submit("a", max_new_tokens=500)
    rig.submit("b")
    rig.engine.step()
    rig.engine.cancel_all(CancelReason.SHUTDOWN)
    assert {rig.finished(name).cancel_reason for name in "ab"} == {CancelReason.SHUTDOWN}
    assert rig.engine.load == 0


def test_a_step_that_raises_ends_its_own_request_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.submit("bad")
    rig.submit("good")

    def broken(plan: object) -> object:
        raise RuntimeError("kernel")

    with monkeypatch.context() as patch:
        patch.setattr(rig.runner, "forward", broken)
        with pytest.raises(RuntimeError):
            rig.engine.step()
        rig.engine.fail_current("internal_error", "failed")
    rig.run()
    assert rig.finished("good").completion_tokens > 0


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    rig = Rig(EngineConfig(context_length=64))
    with pytest.raises(PromptError) as caught:
        rig.submit(text="x" * 100)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.prompt_tokens is not None
    assert caught.value.prompt_tokens > 100


def test_a_reply_may_fill_the_context_to_its_last_token() -> None:
    rig = Rig(EngineConfig(context_length=96, exact=True), blocks=4, endless=True)
    rig.submit(text="x" * 20, max_new_tokens=None, sampling=GREEDY)
    rig.run()
    end = rig.finished()
    assert end.finish_reason == "length"
    assert end.prompt_tokens + end.completion_tokens == 96


def test_a_cancelled_request_stays_cancelled_though_its_last_character_completes_a_stop_string(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(endless=True)
    (half,) = (i for i in range(rig.runner.vocab_size) if rig.tokenizer.token_bytes(i) == b"\xc3")

    def half_a_character(plan: StepPlan) -> Logits:
        logits = np.zeros((plan.total_rows, rig.runner.vocab_size), np.float32)
        logits[:, half] = 9.0
        return logits

    monkeypatch.setattr(rig.runner, "forward", half_a_character)
    rig.submit(stop=("\ufffd",), max_new_tokens=5)
    while not rig.engine.tokens_generated:
        rig.engine.step()
    rig.engine.cancel("r", CancelReason.CLIENT)
    rig.run()
    end = rig.finished()
    assert (end.finish_reason, end.stop_string) == ("cancelled", None)
    assert end.cancel_reason is CancelReason.CLIENT
