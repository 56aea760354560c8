"""Drafts change how many steps a reply takes, and nothing else: not its text, its end, nor what is left behind.

The reference model has recurrent state, so a state row that was chosen wrongly shows in the text that follows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.config import DraftLimits, EngineConfig
from agentserve.engine.drafting import drafting
from agentserve.engine.drafting.drafters import Draft, Source
from agentserve.engine.drafting.length import Promise
from agentserve.engine.drafting.step_costs import ROWS, StepCosts
from agentserve.engine.engine import Engine
from agentserve.engine.loading import load
from agentserve.engine.prefix.session import Session
from agentserve.engine.protocol import (
    CancelReason,
    GenerateRequest,
    LoadModel,
    Message,
    RequestEvent,
    SamplingParams,
    TextDelta,
)
from agentserve.engine.replies.reader import ReplyReader
from agentserve.engine.replies.replying import Replies
from agentserve.engine.replies.sampling import ResolvedSampling, Sampler
from agentserve.engine.sequence import Sequence, Stamps
from agentserve.engine.text.text_stream import TextStream
from engine_rig import GREEDY, Rig
from prefix_world import CONFIG, PrefixWorld

SEEDED = SamplingParams(temperature=0.7, top_p=0.95, seed=5, frequency_penalty=0.2, repetition_penalty=1.1)
TEXTS = [f"{verb} {thing}" * 2 for verb in ("read", "list", "edit", "run", "find") for thing in range(10)]


def config(most: int, exact: bool = True) -> EngineConfig:
    return EngineConfig(1024, exact, draft_limits=DraftLimits(most, most))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is verified to its end, and where there is none random tokens are: most are rejected."""
    dice, drafted = random.Random(1), drafting.first_draft

    def always(drafters: tuple[drafting.Drafter, ...], most: int) -> Draft:
        noise = Draft(tuple(dice.randrange(256) for _ in range(most)), Source("noise", 0))
        return drafted(drafters, most) or noise

    monkeypatch.setattr(drafting, "first_draft", always)
    everything = "agentserve.engine.drafting.speculation.best_length"
    monkeypatch.setattr(everything, lambda _rate, most, *_, **__: Promise(most, 2.0))


def replies(most: int, sampling: SamplingParams, exact: bool = True) -> tuple[list[str], Rig]:
    rig = Rig(config(most, exact), blocks=200, endless=True)
    for index, text in enumerate(TEXTS):
        rig.submit(f"r{index}", text, sampling=sampling, max_new_tokens=16)
    rig.run()
    return [rig.text(f"r{index}") for index in range(len(TEXTS))], rig


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_the_same_for_every_draft_length(sampling: SamplingParams) -> None:
    expected, plain = replies(0, sampling)
    assert plain.engine.speculation.stats.steps == 0
    for most in (1, 2, 4, 8, 16):
        found, rig = replies(most, sampling)
        assert found == expected
        stats = rig.engine.speculation.stats
        assert 0 < stats.accepted < stats.drafted
        assert len(rig.runner.plans) < len(plain.runner.plans)


@pytest.mark.usefixtures("eager")
def test_single_rows_and_drafts_mix_where_exact_mode_is_off() -> None:
    assert replies(8, SEEDED, exact=False)[0] == replies(0, SEEDED, exact=False)[0]


@pytest.mark.usefixtures("eager")
def test_stop_strings_tokens_and_limits_cut_inside_an_accepted_run() -> None:
    whole = one_reply(0, max_new_tokens=60).text()
    at = len(whole) // 2
    for stop in (whole[at : at + 1], whole[at : at + 3], whole[at : at + 7]):
        plain, drafted = (one_reply(most, max_new_tokens=60, stop=(stop,)) for most in (0, 16))
        assert drafted.text() == plain.text() == whole[: whole.index(stop)]
        assert tokens_kept(drafted) == tokens_kept(plain)
        assert drafted.finished().completion_tokens == plain.finished().completion_tokens
    for limit in range(1, 20):
        plain, drafted = (one_reply(most, max_new_tokens=limit) for most in (0, 16))
        assert drafted.text() == plain.text()
        assert tokens_kept(drafted) == tokens_kept(plain)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(8))
def test_an_end_of_turn_token_ends_an_accepted_run(seed: int) -> None:
    sampling = SamplingParams(temperature=1.0, seed=seed)
    plain, drafted = (
        one_reply(most, endless=False, sampling=sampling, max_new_tokens=400) for most in (0, 16)
    )
    assert drafted.text() == plain.text()
    assert tokens_kept(drafted) == tokens_kept(plain)
    assert drafted.finished().finish_reason == plain.finished().finish_reason == "stop"


@pytest.mark.usefixtures("eager")
def test_a_cancel_cuts_an_accepted_run_behind_the_token_that_it_came_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Rig(config(0), endless=True)
    expected = plain.submit(max_new_tokens=41)
    plain.run()
    rig = Rig(config(16), endless=True)
    sequence = rig.submit(max_new_tokens=60)
    observe = sequence.sampler.observe

    def hang_up(token: int) -> None:
        observe(token)
        if len(sequence.output) == 41:
            rig.engine.cancel("r", CancelReason.CLIENT)

    monkeypatch.setattr(sequence.sampler, "observe", hang_up)
    rig.run()
    assert sequence.output == expected.output
    assert rig.finished().finish_reason == "cancelled"
    assert tokens_kept(rig) == tokens_kept(plain)


def one_reply(most: int, endless: bool = True, **fields: object) -> Rig:
    rig = Rig(config(most), endless=endless)
    rig.submit(**fields)  # type: ignore[arg-type]
    rig.run()
    return rig


def tokens_kept(rig: Rig) -> list[int]:
    """All that the index knows after one request."""
    node, tokens = rig.engine.cache.root(""), list[int]()
    while following := list(node.successors):
        node = max(following, key=lambda one: len(one.tokens))
        tokens += node.tokens
    return tokens


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(3))
def test_agents_that_hang_up_edit_and_retry_get_what_a_fresh_engine_says(seed: int) -> None:
    walk(seed)


def walk(seed: int) -> None:
    dice = random.Random(seed)
    drafting_config = replace(CONFIG, draft_limits=DraftLimits(8, 8))
    world = PrefixWorld(rig=Rig(drafting_config, blocks=30, endless=True))
    moves: list[Callable[[int, str], None]] = [
        world.next_turn,
        lambda index, _text: world.retry(index),
        world.edit,
        lambda index, text: world.abort(index, text, dice.randrange(8)),
    ]
    world.start(0, "go")
    for _ in range(20):
        dice.choice(moves)(dice.randrange(8), dice.choice(TEXTS))


def keeps_the_last_state(patch: pytest.MonkeyPatch) -> None:
    """Rejected tokens stay in the recurrent state."""
    commit = Session.commit
    patch.setattr(Session, "commit", lambda self, tokens, rejected=0: commit(self, tokens))


def accepts_too_much(patch: pytest.MonkeyPatch) -> None:
    """One token behind the first difference is taken as well."""
    patch.setattr("agentserve.engine.replies.replying.Replies.accept", lenient(Replies.accept))


def lenient(accept: Callable[..., object]) -> Callable[..., object]:
    def accept_more(self: Replies, sequence: Sequence, draft: tuple[int, ...], logits: np.ndarray) -> object:
        foreseen = [int(row.argmax()) for row in logits[:-1]]
        return accept(self, sequence, foreseen, logits)

    return accept_more


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("breakage", [keeps_the_last_state, accepts_too_much])
def test_a_broken_roll_back_is_found_out(
    breakage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = replies(0, GREEDY)[0]
    breakage(monkeypatch)
    assert replies(8, GREEDY)[0] != expected


def test_a_draft_does_not_change_the_distribution() -> None:
    """Pearson's chi-square over 3000 seeds, for the first two tokens of a step with a draft that is often wrong."""
    shares = np.array([0.45, 0.3, 0.15, 0.07, 0.03])
    logits = np.log(np.array([shares, shares[::-1], shares])).astype(np.float32)
    first, second = Counter[int](), Counter[int]()
    tokenizer = Rig(blocks=2).tokenizer
    for seed in range(3000):
        sampler = Sampler(ResolvedSampling(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, seed), ())
        sequence = Sequence("r", (1,), 9, sampler, ReplyReader(TextStream(tokenizer, ())), Stamps(0.0))
        Replies(frozenset(), lambda _event: None).accept(sequence, (0, 4), logits)
        first[sequence.output[0]] += 1
        if len(sequence.output) > 1:
            second[sequence.output[1]] += 1
    # Below with probability 0.999 for four degrees of freedom.
    assert chi_square(first, shares) < 18.5
    assert chi_square(second, shares[::-1]) < 18.5
    assert second.total() == first[0]


def chi_square(counts: Counter[int], shares: np.ndarray) -> float:
    expected = shares * counts.total()
    observed = np.array([counts[token] for token in range(len(shares))])
    return float(((observed - expected) ** 2 / expected).sum())


def test_the_first_token_does_not_wait_for_the_index_of_the_prompt() -> None:
    rig = Rig(config(8), endless=True)
    sequence = rig.submit(text="x" * 200, max_new_tokens=5)
    while not sequence.output:
        rig.engine.step()
    assert sequence.drafting is None
    rig.engine.step()
    assert sequence.drafting is not None


def test_drafts_that_do_not_pay_are_not_verified(tmp_path: Path) -> None:
    """Every row as dear as the first: the reference model in truth. Rows for nothing: a device that idles."""
    for dear, expected in ((True, False), (False, True)):
        file, costs = tmp_path / f"{dear}.json", StepCosts()
        for rows in ROWS:
            costs.observe(rows, 0, float(rows if dear else 1))
        costs.observe_change(1e-6)
        costs.save(file)
        rig = Rig(replace(config(8, exact=False), step_costs_file=file), endless=True)
        rig.submit(max_new_tokens=30)
        for _ in range(12):
            rig.engine.step()
        assert (rig.engine.speculation.stats.attempts > 0) == expected


def test_costs_are_measured_when_there_is_nothing_to_do_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    rig = Rig(replace(config(8), step_costs_file=file), blocks=12)
    rig.run()
    measured = StepCosts.load(file)
    assert 0 < measured.seconds(1, 0) < measured.seconds(16, 0) < 1
    plans = len(rig.runner.plans)
    assert plans > 0
    rig.run()
    assert len(rig.runner.plans) == plans
    assert rig.engine.cache.blocks.free == 12


def test_a_request_may_ask_for_fewer_drafted_tokens_and_not_for_more_than_the_cap() -> None:
    limits = DraftLimits(4, 8)
    assert [limits.limit(asked) for asked in (None, 0, 3, 8, 99)] == [4, 0, 3, 8, 8]
    assert DraftLimits().limit(5) == 0


@pytest.fixture(scope="module")
def smollm2_replies(smollm2: Path) -> Callable[[int, SamplingParams], list[str]]:
    spec = LoadModel("m", str(smollm2), threads=2, max_context=1024, exact=True, max_draft_tokens=16)
    model = load(spec, lambda _stage: None)

    def answers(most: int, sampling: SamplingParams) -> list[str]:
        texts: dict[str, str] = {}

        def note(event: RequestEvent) -> None:
            if isinstance(event, TextDelta):
                texts[event.request_id] = texts.get(event.request_id, "") + event.text

        stops = model.prompter.tokenizer.eos_ids
        engine = Engine(model.runner, model.config, stops, model.block_cache(), note)
        for index, text in enumerate(PROMPTS):
            request = GenerateRequest(
                f"{index}", (Message("user", text),), sampling=sampling, max_new_tokens=32, draft_tokens=most
            )
            prompt = model.prompter.prompt(request)
            engine.submit(model.prompter.sequence(request, prompt, Stamps(0.0)))
        while engine.load:
            engine.step()
        return [texts[f"{index}"] for index in range(len(PROMPTS))]

    return answers


PROMPTS = (
    "Repeat this list exactly: red, green, blue, yellow, red, green, blue, yellow, red, green, blue, yellow.",
    "def add(a, b):\n    return a + b\n\nWrite the same function for three numbers, then for four.",
)


@pytest.mark.model
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_real_model_says_the_same_in_exact_mode(
    smollm2_replies: Callable[[int, SamplingParams], list[str]], sampling: SamplingParams
) -> None:
    expected = smollm2_replies(0, sampling)
    assert all(expected)
    for most in (1, 8):
        assert smollm2_replies(most, sampling) == expected
