"""Whether drafts of a draft model pay is decided before they are made; simulated, in steps of the model itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import takewhile

import pytest
from agentserve.engine.drafting.acceptance import AcceptanceRates
from agentserve.engine.drafting.counts import DraftCounter
from agentserve.engine.drafting.draft_model import CHUNK, DraftSession
from agentserve.engine.drafting.drafters import MODEL, Draft, Source
from agentserve.engine.drafting.drafting import Drafting
from agentserve.engine.drafting.length import best_length
from agentserve.engine.drafting.model_drafter import ModelDrafter
from agentserve.engine.drafting.outlay import Allowance, DraftCosts
from agentserve.engine.drafting.step_costs import ROWS, StepCosts
from agentserve.engine.drafting.suffix_index import SuffixIndex
from draft_models import TwinRunner, draft_model

# SmolLM2 on two cores, in milliseconds, for ROWS.
LINE = (9.8, 10.6, 11.8, 15.0, 21.0)


def table(share: float) -> StepCosts:
    """Of a model so much smaller."""
    costs = StepCosts()
    for rows, milliseconds in zip(ROWS, LINE, strict=True):
        costs.observe(rows, 256, share * milliseconds / 1000)
    return costs


class Script(DraftSession):
    """A session that computes nothing: it is right with a probability about what comes, and counts what it would take."""

    def __init__(self, text: SuffixIndex, to_come: list[int], accuracy: float, costs: DraftCosts) -> None:
        self._script = [*text.tokens.tolist(), *to_come]
        self._text = text
        self._accuracy = accuracy
        self._costs = costs
        self._dice = random.Random(len(self._script))
        self._computed = 0
        self.spent = 0.0
        self.drafts = 0
        self.shut = False

    @property
    def behind(self) -> int:
        return len(self._text) - self._computed

    def catch_up(self) -> None:
        self._compute(CHUNK)

    def guesses(self, most: int) -> Iterator[int]:
        self._compute(self.behind - 1)
        self.drafts += 1
        for place in range(len(self._text), len(self._text) + most):
            self.spent += self._costs.token(0)
            is_right = place < len(self._script) and self._dice.random() < self._accuracy
            yield self._script[place] if is_right else -1

    def _compute(self, tokens: int) -> None:
        self.spent += self._costs.catching_up(tokens, 0)
        self._computed += tokens


class Worker:
    """What requests of one worker share, for a draft model of the given size that is right with some probability."""

    def __init__(self, share: float) -> None:
        self.table = table(1.0)
        self.costs = DraftCosts(table(share), self.table, share)
        self.rates = AcceptanceRates()
        self.savings = Allowance()
        self.model = draft_model(TwinRunner(), blocks=1, context=10**6)

    def gain(self, accuracy: float, prompt: int = 600, reply: int = 300) -> float:
        """How much faster a reply is written than without the draft model; it had computed nothing of the prompt."""
        text, rest = SuffixIndex(range(1, prompt + 1)), [10_000 + i for i in range(reply)]
        self.session = Script(text, rest, accuracy, self.costs)
        drafter = ModelDrafter(self.model, self.session, text, self.costs, self.savings, lambda: False, len)
        drafts = Drafting(text, (), AcceptanceRates(self.rates), DraftCounter(), drafter)
        pays = partial(best_length, costs=self.table, context=256, least_rows=1)
        steps = 0.0
        while rest:
            drafted = drafts.draft(min(15, len(rest) - 1), pays, len(rest))
            pairs = zip(drafted, rest, strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            drafts.settle(rest[: right + 1])
            rest = rest[right + 1 :]
            steps += self.table.seconds(len(drafted) + 1, 256) / self.table.seconds(1, 256)
        return reply / (steps + self.session.spent)


def mean(gains: list[float]) -> float:
    """That of replies of one length, taken together."""
    return len(gains) / sum(1 / gain for gain in gains)


@pytest.mark.parametrize(("share", "least"), [(0.05, 2.5), (0.1, 2.0), (0.2, 1.4)])
def test_a_good_draft_model_pays_from_the_first_request_on(share: float, least: float) -> None:
    worker = Worker(share)
    assert min(worker.gain(0.9) for _ in range(4)) > least


def test_one_as_large_as_the_model_itself_is_never_asked_to_draft() -> None:
    worker = Worker(1.0)
    assert min(worker.gain(1.0) for _ in range(4)) > 0.99


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.4])
def test_a_draft_model_that_is_never_right_costs_less_than_3_percent(share: float) -> None:
    """Of a dozen requests together. It is tried in the first one, and looked at again a hundredth of the time."""
    worker = Worker(share)
    gains = [worker.gain(0.0) for _ in range(12)]
    assert mean(gains) > 0.97
    assert mean(gains[1:]) > 0.99
    assert min(gains) > 0.88


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_one_that_becomes_good_is_found_out(share: float) -> None:
    worker = Worker(share)
    worker.rates.record(MODEL, 0, 40)
    gains = [worker.gain(0.95, prompt=50, reply=600) for _ in range(12)]
    assert gains[0] < 1.1
    assert max(gains) > 1.3


def test_a_long_prompt_is_not_caught_up_with_for_a_short_reply() -> None:
    worker = Worker(0.2)
    assert worker.gain(0.9, prompt=20_000, reply=20) == pytest.approx(1.0)
    assert worker.session.spent == 0
    assert worker.gain(0.9, prompt=400, reply=300) > 1.2


def test_what_was_looked_up_is_heard_unless_the_draft_model_promises_more() -> None:
    """A match costs nothing, so it need not be as good; what a grammar forces is never asked about."""
    for source, tokens, expected in (
        (Source("suffix", 32), (1,) * 15, "suffix"),
        (Source("guess", 1), (1, 1), "model"),
        (Source("grammar", 0), (1,), "grammar"),
        (None, (), "model"),
    ):
        worker, text, counter = Worker(0.05), SuffixIndex(range(20)), DraftCounter()
        session = Script(text, [1] * 99, 1.0, worker.costs)
        model = ModelDrafter(worker.model, session, text, worker.costs, worker.savings, lambda: False, len)
        drafters = (Fixed(Draft(tokens, source)),) if source else ()
        one = Drafting(text, drafters, worker.rates, counter, model)
        drafted = one.draft(15, partial(best_length, costs=worker.table, context=256, least_rows=1), 99)
        one.settle(drafted)
        assert [drafter.drafter for drafter in counter.stats().drafters] == [expected]
        assert (session.drafts > 0) == (expected == "model")


class Fixed:
    def __init__(self, offer: Draft) -> None:
        self._offer = offer

    def draft(self, most: int) -> Draft | None:
        return self._offer.first(most)


def test_a_draft_that_a_grammar_refuses_is_cut_and_learned_from() -> None:
    worker, text = Worker(0.05), SuffixIndex(range(20))
    session = Script(text, [7, 8, 9, 10], 1.0, worker.costs)

    def allows(tokens: tuple[int, ...]) -> int:
        return len(tuple(takewhile(lambda token: token != 9, tokens)))

    model = ModelDrafter(worker.model, session, text, worker.costs, worker.savings, lambda: False, allows)
    one = Drafting(text, (), worker.rates, DraftCounter(), model)
    pays = partial(best_length, costs=worker.table, context=256, least_rows=1)
    assert one.draft(4, pays, 99) == (7, 8)
    one.settle([7, 8, 11])
    expected = AcceptanceRates()
    expected.record(MODEL, 2, 1)
    assert worker.rates[MODEL] == expected[MODEL]


def test_costs_are_taken_from_the_sizes_until_both_were_measured() -> None:
    known, unknown = table(1.0), StepCosts()
    assert DraftCosts(unknown, known, 0.25).token(100) == 0.25
    assert DraftCosts(known, unknown, 0.25).token(100) == 0.25
    assert DraftCosts(table(0.5), known, 0.25).token(100) == pytest.approx(0.5)
    assert DraftCosts(unknown, known, 0.25).spent(LINE[0] / 500, 100) == pytest.approx(2)
    assert DraftCosts(known, unknown, 0.25).spent(1.0, 100) == 0
    many = DraftCosts(table(0.5), known, 0.25).catching_up(160, 100)
    assert many == pytest.approx(160 / 16 * 0.5 * LINE[-1] / LINE[0])
