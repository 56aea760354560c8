"""Drafts, where they come from, what is remembered for them and what is counted."""

from __future__ import annotations

from agentserve.engine.drafting.acceptance import AcceptanceRates
from agentserve.engine.drafting.counts import DraftCounter
from agentserve.engine.drafting.drafters import Draft, ForcedDrafter, HistoryDrafter, Source, first_draft
from agentserve.engine.drafting.drafting import Drafting
from agentserve.engine.drafting.length import Promise
from agentserve.engine.drafting.memory import DraftMemory
from agentserve.engine.drafting.suffix_index import SuffixIndex

SOURCE = Source("suffix", 4)
WORDS = list(range(100, 140))


class FixedDrafter:
    """Always offers the same tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def draft(self, most: int) -> Draft | None:
        return Draft(self.tokens[:most], SOURCE)


def drafting(*tokens: int) -> Drafting:
    return Drafting(SuffixIndex(WORDS), (FixedDrafter(*tokens),), AcceptanceRates(), DraftCounter())


def everything(rate: float, most: int, token_cost: float = 0.0) -> Promise:
    return Promise(most, 2.0)


def nothing(rate: float, most: int, token_cost: float = 0.0) -> Promise:
    return Promise()


def test_what_a_grammar_forces_goes_before_everything_else() -> None:
    text = SuffixIndex([*WORDS, *WORDS[:9]])
    history = HistoryDrafter(text, SuffixIndex())
    forced = ForcedDrafter(lambda most: (7, 8, 9)[:most])
    assert first_draft((forced, history), 2) == Draft((7, 8), Source("grammar", 0))
    free = ForcedDrafter(lambda _most: ())
    assert first_draft((free, history), 2) == Draft((109, 110), Source("suffix", 8))


def test_past_texts_help_where_the_own_text_has_no_match_as_long() -> None:
    past = SuffixIndex([1, 2, 3, 4, 5, 6, 7, 8, 70])
    for own, expected in (
        ([5, 6, 7, 8], Draft((70,), Source("past", 4))),
        ([*range(1, 9), 60, *range(1, 9)], Draft((60,), Source("suffix", 8))),
        ([3, 4, 5, 6, 50, *range(1, 9)], Draft((70,), Source("past", 8))),
        ([7, 8, 40, 7, 8], Draft((40,), Source("guess", 2))),
        ([1, 2], None),
    ):
        assert HistoryDrafter(SuffixIndex(own), past).draft(1) == expected


def test_a_draft_is_cut_to_what_pays_and_to_what_may_come() -> None:
    seen: list[tuple[float, int]] = []

    def two(rate: float, most: int, token_cost: float = 0.0) -> Promise:
        seen.append((rate, most))
        return Promise(2, 2.0)

    one = drafting(1, 2, 3, 4)
    assert one.draft(3, two) == (1, 2)
    assert seen == [(AcceptanceRates()[SOURCE], 3)]
    assert one.draft(0, everything) == ()


def test_a_step_is_learned_from_up_to_the_first_difference() -> None:
    one = drafting(1, 2, 3, 4)
    one.draft(4, everything)
    one.settle([1, 2, 9])
    expected = AcceptanceRates()
    expected.record(SOURCE, 2, 1)
    assert one.rates[SOURCE] == expected[SOURCE]
    assert one.text.tokens.tolist() == [*WORDS, 1, 2, 9]


def test_a_draft_that_was_not_worth_a_step_is_learned_from_too() -> None:
    for emitted, right in ((1, 1), (9, 0)):
        one = drafting(1, 2, 3, 4)
        assert one.draft(4, nothing) == ()
        one.settle([emitted])
        expected = AcceptanceRates()
        expected.record(SOURCE, right, 1 - right)
        assert one.rates[SOURCE] == expected[SOURCE]
        assert one.counter.stats().attempts == 0


def test_counts_add_up_for_the_request_and_for_the_worker() -> None:
    worker = DraftCounter()
    requests = DraftCounter(worker), DraftCounter(worker)
    for counter in requests:
        counter.looked(0.5)
        counter.step(3, Draft((1, 2), SOURCE))  # all of it and one more
        counter.step(2, Draft((1, 2, 3), SOURCE))  # one of three
        counter.step(1, Draft((1,), Source("guess", 1)))  # none
        counter.step(2, Draft((1, 2), SOURCE))  # ended by its second token
        counter.step(1, None)
    one, total = requests[0].stats(), worker.stats()
    assert (one.steps, one.tokens, one.attempts, one.drafted, one.accepted) == (5, 9, 4, 8, 4)
    assert (one.emitted, one.accept_length, one.tokens_per_step) == (8, 2.0, 9 / 5)
    assert (one.drafted_at, one.accepted_at) == ((4, 3, 1), (3, 1, 0))
    assert [(d.drafter, d.attempts, d.full) for d in one.drafters] == [("suffix", 3, 1), ("guess", 1, 0)]
    assert (total.steps, total.accepted, total.seconds) == (10, 8, 1.0)


def test_a_conversations_index_is_carried_from_turn_to_turn() -> None:
    memory = DraftMemory()
    first = memory.borrow("", WORDS)
    memory.give_back("", first)
    second = memory.borrow("", [*WORDS[:30], 5, 6])
    assert second is first
    assert second.tokens.tolist() == [*WORDS[:30], 5, 6]
    assert memory.borrow("", WORDS) is not first


def test_a_short_branch_leaves_a_long_index_to_its_own_conversation() -> None:
    memory = DraftMemory()
    long = memory.borrow("", WORDS)
    memory.give_back("", long)
    assert memory.borrow("", [*WORDS[:10], 5]) is not long
    assert memory.borrow("", [*WORDS, 5]) is long


def test_nothing_crosses_namespaces() -> None:
    memory = DraftMemory()
    index = memory.borrow("a", WORDS)
    memory.give_back("a", index)
    memory.learn("a", WORDS)
    assert memory.borrow("b", WORDS) is not index
    assert len(memory.past("b")) == 0
    assert memory.past("a").continuation(SuffixIndex(WORDS[:8]), 1) is not None


def test_past_texts_and_idle_indexes_are_bounded_and_the_last_stay() -> None:
    memory = DraftMemory(past_tokens=200, idle_indexes=2)
    for first in range(0, 2000, 50):
        memory.learn("", list(range(first, first + 50)))
    past = memory.past("")
    assert len(past) <= 200
    assert past.continuation(SuffixIndex([1990, 1991, 1992, 1993]), 1) is not None
    assert past.continuation(SuffixIndex([0, 1, 2, 3]), 1) is None
    memory.learn("", list(range(5000)))
    assert len(memory.past("")) <= 200
    indexes = [memory.borrow("", [i] * 40) for i in range(3)]
    for index in indexes:
        memory.give_back("", index)
    assert memory.borrow("", [0] * 40) is not indexes[0]
    assert memory.borrow("", [2] * 40) is indexes[2]
