"""A draft model changes how many steps a reply takes and nothing else, and leaves nothing behind in its own pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agentserve.engine.config import DraftLimits, EngineConfig
from agentserve.engine.drafting.draft_model import CHUNK, DraftModel
from agentserve.engine.drafting.length import Promise
from agentserve.engine.protocol import CancelReason, Constraint, DrafterCounts, SamplingParams
from draft_models import TwinRunner, draft_model
from engine_rig import GREEDY, Rig
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from prefix_world import CONFIG, PrefixWorld
from world_moves import conversation_moves

SEEDED = SamplingParams(temperature=0.7, top_p=0.95, seed=5, frequency_penalty=0.2, repetition_penalty=1.1)
TEXTS = [f"{verb} {thing}" * 2 for verb in ("read", "edit") for thing in range(6)]


@pytest.fixture(autouse=True)
def only_the_model_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the draft model offers is verified to its end, and nothing that was looked up is."""

    def pays(rate: float, most: int, token_cost: float = 0.0, **_: object) -> Promise:
        return Promise(most, 3.0) if token_cost else Promise()

    monkeypatch.setattr("agentserve.engine.drafting.speculation.best_length", pays)


def config(most: int, **fields: object) -> EngineConfig:
    limits = DraftLimits(most, most)
    return replace(EngineConfig(1024, exact=True, draft_limits=limits), **fields)  # type: ignore[arg-type]


def rig(most: int = 8, runner: TwinRunner | None = None, blocks: int = 100, **fields: object) -> Rig:
    model = draft_model(runner or TwinRunner(), blocks)
    return Rig(config(most), blocks=200, draft_model=model, **{"endless": True, **fields})  # type: ignore[arg-type]


def finish(world: Rig) -> None:
    """Steps until all have ended; measures no costs, which are steps too."""
    while world.engine.load:
        world.engine.step()
    world.engine.integrity.whole()


def counts(world: Rig) -> DrafterCounts:
    """What became of the draft model's drafts."""
    (model,) = world.engine.speculation.stats.drafters
    assert model.drafter == "model"
    return model


def replies(world: Rig, sampling: SamplingParams) -> list[str]:
    for index, text in enumerate(TEXTS):
        world.submit(f"r{index}", text, sampling=sampling, max_new_tokens=16)
    world.run()
    return [world.text(f"r{index}") for index in range(len(TEXTS))]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_the_same_with_a_good_draft_model_and_with_a_bad_one(sampling: SamplingParams) -> None:
    plain = Rig(config(0), blocks=200, endless=True)
    expected = replies(plain, sampling)
    good, bad = rig(), rig(runner=TwinRunner(stubborn=True))
    assert replies(good, sampling) == expected
    assert replies(bad, sampling) == expected
    if sampling is GREEDY:
        assert counts(good).accepted == counts(good).drafted
        assert good.engine.speculation.stats.tokens_per_step > 5
    assert counts(good).accepted > 0
    assert counts(bad).accepted == 0


def test_each_drafted_token_is_computed_once_by_the_draft_model() -> None:
    """Four drafted tokens are right: three of them are computed already, and one step feeds what is new."""
    runner = TwinRunner()
    world = rig(4, runner)
    sequence = world.submit(max_new_tokens=26)
    while not sequence.output:
        world.engine.step()
    for _ in range(5):
        world.engine.step()
    # The prompt and the first token; then the last drafted token and the model's own one.
    assert runner.steps == [len(sequence.prompt) + 1, 1, 1, 1, *(2, 1, 1, 1) * 4]
    assert len(sequence.output) == 26


def test_a_prompt_is_caught_up_with_in_chunks_and_until_then_nothing_is_drafted() -> None:
    runner = TwinRunner()
    world = rig(4, runner)
    sequence = world.submit(text="x" * (2 * CHUNK), max_new_tokens=200)
    while not sequence.output:
        world.engine.step()
    for done in (1, 2):
        world.engine.step()
        assert runner.steps == [CHUNK] * done
        assert len(sequence.output) == 1 + done
    world.engine.step()
    assert runner.steps[2:] == [len(sequence.prompt) + 3 - 2 * CHUNK, 1, 1, 1]
    assert len(sequence.output) == 8


def test_the_next_turn_goes_on_where_the_draft_model_was() -> None:
    runner = TwinRunner()
    world = rig(4, runner)
    text = "a conversation " * 8
    world.submit("one", text, max_new_tokens=9)
    finish(world)
    before = sum(runner.steps)
    second = world.submit("two", text, max_new_tokens=9)
    while len(second.output) < 2:
        world.engine.step()
    # The same prompt: what was left of the last token's block, and no more.
    assert sum(runner.steps) - before < 12
    assert before > len(second.prompt)


def test_nothing_of_it_crosses_namespaces() -> None:
    runner = TwinRunner()
    world = rig(4, runner)
    world.submit("one", "a secret " * 8, max_new_tokens=9, namespace="mine")
    finish(world)
    before = sum(runner.steps)
    second = world.submit("two", "a secret " * 8, max_new_tokens=9, namespace="yours")
    while len(second.output) < 2:
        world.engine.step()
    assert sum(runner.steps) - before > len(second.prompt)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 9])
def test_a_tiny_pool_costs_drafts_and_no_text(blocks: int) -> None:
    expected = replies(Rig(config(0), blocks=200, endless=True), GREEDY)
    world = rig(blocks=blocks)
    assert replies(world, GREEDY) == expected
    assert world.draft_model is not None
    assert world.draft_model.cache.blocks.used == 0


def test_tokens_that_only_the_model_has_are_never_shown_to_the_draft_model() -> None:
    def reply(model: DraftModel | None) -> Rig:
        world = Rig(config(8), blocks=200, endless=True, draft_model=model)
        world.submit(messages=(), prompt=tuple(range(60, 100)))
        finish(world)
        return world

    runner = TwinRunner()
    with_padding = replace(draft_model(runner), vocab_size=runner.vocab_size - 1, rows=runner.vocab_size)
    assert reply(with_padding).text() == reply(None).text()
    assert with_padding.cache.blocks.cached > 0
    runner = TwinRunner()
    without_letters = replace(draft_model(runner), vocab_size=60)
    world = reply(without_letters)
    assert runner.steps == []
    assert world.engine.speculation.stats.attempts == 0
    assert without_letters.cache.blocks.used == 0


def test_a_context_that_is_shorter_than_the_models_own_ends_the_drafts_there() -> None:
    plain = Rig(config(0), blocks=200, endless=True)
    expected = plain.submit(max_new_tokens=120)
    plain.run()
    short = len(expected.prompt) + 60
    runner = TwinRunner()
    world = Rig(config(8), blocks=200, endless=True, draft_model=draft_model(runner, context=short))
    sequence = world.submit(max_new_tokens=120)
    world.run()
    assert sequence.output == expected.output
    assert 40 < counts(world).accepted < 60


def reply_and_length(most: int, endless: bool = True, **fields: object) -> tuple[str, int]:
    """The text and how many tokens it took."""
    world = rig(most, endless=endless) if most else Rig(config(0), blocks=200, endless=endless)
    world.submit(**fields)  # type: ignore[arg-type]
    finish(world)
    return world.text(), world.finished().completion_tokens


def test_stop_strings_and_limits_cut_inside_an_accepted_run() -> None:
    whole = reply_and_length(0, max_new_tokens=60)[0]
    for stop in (whole[20:21], whole[30:34]):
        assert reply_and_length(8, max_new_tokens=60, stop=(stop,)) == reply_and_length(
            0, max_new_tokens=60, stop=(stop,)
        )
    for limit in (1, 2, 7, 8, 9, 10):
        assert reply_and_length(8, max_new_tokens=limit) == reply_and_length(0, max_new_tokens=limit)


@pytest.mark.parametrize("seed", range(3))
def test_an_end_of_turn_token_ends_an_accepted_run_and_a_draft(seed: int) -> None:
    fields = {"sampling": SamplingParams(temperature=1.0, seed=seed), "max_new_tokens": 300}
    assert reply_and_length(8, endless=False, **fields) == reply_and_length(0, endless=False, **fields)
    runner = TwinRunner()
    model = draft_model(runner, ends=frozenset(range(runner.vocab_size)))
    world = Rig(config(8), endless=True, draft_model=model)
    world.submit(max_new_tokens=9)
    finish(world)
    # Any token might be the last one, so each draft has one.
    assert world.engine.speculation.stats.drafted_at == (counts(world).attempts,)


@pytest.mark.parametrize("after", range(1, 25, 3))
def test_a_cancel_at_any_step_gives_everything_back(after: int) -> None:
    runner = TwinRunner()
    world = rig(8, runner)
    sequence = world.submit(max_new_tokens=200)
    forward = runner.forward

    def hang_up(plan: object) -> object:
        if len(runner.steps) == after:
            world.engine.cancel("r", CancelReason.CLIENT)
        return forward(plan)  # type: ignore[arg-type]

    runner.forward = hang_up  # type: ignore[assignment, method-assign]
    while "r" in {entry.request_id for entry in world.engine.progress()} or not sequence.output:
        world.engine.step()
    # The step of the draft model that it came with was the last one.
    assert len(runner.steps) == after + 1
    assert world.draft_model is not None
    assert world.draft_model.cache.blocks.used == 0
    world.engine.integrity.whole()


def test_several_answers_to_one_prompt_share_its_blocks() -> None:
    def answers(world: Rig) -> list[str]:
        for choice in range(3):
            sampling = SamplingParams(temperature=0.8, seed=choice)
            world.submit(f"r{choice}", "share me " * 9, max_new_tokens=12, choice=choice, sampling=sampling)
        finish(world)
        return [world.text(f"r{choice}") for choice in range(3)]

    runner = TwinRunner()
    assert answers(rig(4, runner)) == answers(Rig(config(0), blocks=200, endless=True))
    # One of them computed the prompt, the others what is behind its last whole block.
    assert sum(step > 32 for step in runner.steps) == 1


def test_a_block_of_the_draft_model_that_nobody_gives_back_is_found_out() -> None:
    world = rig(blocks=300)
    world.submit(max_new_tokens=20)
    finish(world)
    assert world.draft_model is not None
    world.draft_model.cache.blocks.allocate(1)
    with pytest.raises(AssertionError, match="1 references, 0 holders"):
        check_in_parts(world)


def check_in_parts(world: Rig) -> None:
    """As an idle worker does: first the books of the model, then those of the draft model."""
    while world.engine.integrity.part():
        pass


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_grammar_cuts_what_it_refuses(sampling: SamplingParams) -> None:
    expression = Constraint("regex", "([a-z]{1,9}[ ,.]){3,6}", "response_format")

    def answer(most: int) -> Rig:
        world = rig(most) if most else Rig(config(0), blocks=200, endless=True)
        world.submit(constraint=expression, max_new_tokens=40, sampling=sampling)
        finish(world)
        return world

    drafted = answer(8)
    assert drafted.text() == answer(0).text()
    model = next(one for one in drafted.engine.speculation.stats.drafters if one.drafter == "model")
    assert model.accepted > 0


class DraftMachine(conversation_moves(TEXTS, most_steps=9)):
    """Turns, retries, edits, branches and hang-ups in any order, with a draft model that is right or wrong."""

    def __init__(self) -> None:
        super().__init__()
        settings = replace(CONFIG, draft_limits=DraftLimits(5, 5))
        self.model = draft_model(TwinRunner(), blocks=24)
        self.world = PrefixWorld(rig=Rig(settings, blocks=30, endless=True, draft_model=self.model))

    @rule(blocks=st.integers(1, 24))
    def crowd(self, blocks: int) -> None:
        """Somebody else takes blocks of the draft model, and leaves nothing in them that is known."""
        pool = self.model.cache.blocks
        pool.release(pool.allocate(min(blocks, pool.available)))

    @invariant()
    def nothing_is_held(self) -> None:
        assert self.model.cache.blocks.used == 0


DraftMachine.TestCase.settings = hypothesis_settings(max_examples=8, stateful_step_count=12, deadline=None)
TestDraftMachine = DraftMachine.TestCase
