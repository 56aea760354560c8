"""What a step costs, how often drafts are right, and the draft length that follows from both."""

from __future__ import annotations

import re
import zlib
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.drafting.acceptance import AcceptanceRates
from agentserve.engine.drafting.counts import DraftCounter
from agentserve.engine.drafting.drafters import HistoryDrafter, Source
from agentserve.engine.drafting.drafting import Drafting
from agentserve.engine.drafting.length import best_length
from agentserve.engine.drafting.step_costs import ROWS, StepCosts, bucket_of, context_of
from agentserve.engine.drafting.suffix_index import SuffixIndex

SUFFIX = Source("suffix", 8)
# SmolLM2 on two cores, in milliseconds, for ROWS.
AT_512, AT_4096 = (9.8, 10.6, 11.8, 15.0, 21.0), (14.3, 23.4, 26.2, 35.1, 50.0)


def length(rate: float, most: int, table: StepCosts, context: int, least_rows: int) -> int:
    """Of a draft that costs nothing."""
    return best_length(rate, most, costs=table, context=context, least_rows=least_rows).length


def costs(**lines: tuple[float, ...]) -> StepCosts:
    table = StepCosts()
    for context, line in lines.items():
        for rows, milliseconds in zip(ROWS, line, strict=True):
            table.observe(rows, int(context[1:]), milliseconds / 1000)
    return table


@pytest.mark.parametrize(
    ("rate", "most", "expected"),
    [(0.95, 15, 15), (0.95, 5, 5), (0.6, 15, 3), (0.3, 15, 1), (0.02, 15, 0), (0.95, 0, 0)],
)
def test_cheap_rows_are_drafted_for_and_hopeless_ones_are_not(rate: float, most: int, expected: int) -> None:
    assert length(rate, most, costs(c512=AT_512), 512, 1) == expected


def test_behind_a_long_context_only_good_drafts_pay() -> None:
    table = costs(c512=AT_512, c4096=AT_4096)
    assert [length(rate, 15, table, 4096, 1) for rate in (0.3, 0.45, 0.95)] == [0, 0, 15]


def test_where_no_step_has_one_row_the_first_drafted_token_is_free() -> None:
    table = costs(c4096=AT_4096)
    assert length(0.01, 15, table, 4096, least_rows=2) == 1
    assert length(0.01, 15, table, 4096, least_rows=1) == 0


def test_an_unknown_machine_is_taken_for_the_one_that_was_measured() -> None:
    assert length(0.9, 15, StepCosts(), 100, 1) > 3


def test_buckets_of_contexts_double() -> None:
    assert [bucket_of(c) for c in (0, 511, 512, 1023, 1024, 4096, 16384)] == [0, 0, 1, 1, 2, 4, 6]
    assert all(bucket_of(context_of(bucket)) == bucket for bucket in range(12))


def test_costs_between_measured_rows_and_beyond_them_are_on_a_line() -> None:
    table = costs(c600=(10, 12, 14, 22, 30))
    shown = [table.seconds(rows, 700) for rows in (1, 3, 6, 16, 20)]
    assert shown == pytest.approx([0.010, 0.013, 0.018, 0.030, 0.034])


def test_a_deeper_context_looks_like_the_shallower_one_scaled_until_it_is_measured() -> None:
    table = costs(c512=(10, 11, 12, 15, 20))
    table.observe(1, 5000, 0.020)
    assert [table.seconds(rows, 5000) for rows in ROWS] == pytest.approx([0.020, 0.022, 0.024, 0.030, 0.040])
    table.observe(8, 5000, 0.060)
    assert table.seconds(8, 5000) == pytest.approx(0.060)
    assert table.seconds(16, 5000) >= table.seconds(8, 5000)


def test_a_measurement_that_was_disturbed_is_bounded_by_those_of_more_rows() -> None:
    table = costs(c600=(10, 90, 14, 22, 30))
    assert [table.seconds(rows, 600) for rows in ROWS] == pytest.approx([0.010, 0.014, 0.014, 0.022, 0.030])


def test_costs_follow_a_drift_and_hardly_a_disturbance() -> None:
    table = costs(c512=AT_512)
    table.observe(16, 512, 1.0)
    assert table.seconds(16, 512) < 0.024
    for _ in range(80):
        table.observe(16, 512, 0.040)
    assert table.seconds(16, 512) == pytest.approx(0.040, rel=0.05)
    for _ in range(5):
        table.observe(16, 512, 0.025)
    assert table.seconds(16, 512) == pytest.approx(0.025, rel=0.05)


def test_costs_survive_a_restart_and_a_damaged_file_means_none(tmp_path: Path) -> None:
    file = tmp_path / "new" / "costs.json"
    costs(c512=AT_512).save(file)
    assert StepCosts.load(file).seconds(4, 512) == pytest.approx(0.0118)
    unknown = StepCosts().seconds(4, 512)
    file.write_text('{"cells": [[1, 2]]}')
    assert StepCosts.load(file).seconds(4, 512) == unknown
    assert StepCosts.load(tmp_path / "none").seconds(4, 512) == unknown


def test_rates_follow_what_happens_and_forget_what_was() -> None:
    rates = AcceptanceRates()
    for _ in range(200):
        rates.record(SUFFIX, 9, 1)
    assert rates[SUFFIX] == pytest.approx(0.9, abs=0.03)
    for _ in range(200):
        rates.record(SUFFIX, 0, 1)
    assert rates[SUFFIX] < 0.1
    assert rates[Source("suffix", 4)] == AcceptanceRates()[Source("suffix", 4)]


def test_a_request_starts_from_the_workers_rates_and_teaches_them() -> None:
    worker = AcceptanceRates()
    for _ in range(100):
        worker.record(SUFFIX, 0, 1)
    request = AcceptanceRates(worker)
    assert request[SUFFIX] == worker[SUFFIX]
    request.record(SUFFIX, 10, 0)
    assert request[SUFFIX] > 0.5 > worker[SUFFIX] > 0.1


def test_longer_matches_are_trusted_more_and_grammars_wholly() -> None:
    rates = AcceptanceRates()
    trust = [rates[Source("suffix", level)] for level in (1, 2, 4, 8, 16, 32)]
    assert trust == sorted(trust)
    assert rates[Source("grammar", 0)] == 1.0


@pytest.mark.parametrize(("line", "context"), [(AT_512, 512), (AT_4096, 4096)])
@pytest.mark.parametrize("kind", ["random", "Zipf", "prose"])
def test_text_that_can_not_be_predicted_costs_less_than_3_percent(
    line: tuple[float, ...], context: int, kind: str
) -> None:
    """By the table of costs, from the first request of a worker on, which knows nothing of its text yet."""
    assert gain(*unpredictable(kind), line, context) > 0.97


@pytest.mark.parametrize(("line", "context"), [(AT_512, 512), (AT_4096, 4096)])
def test_a_copy_is_several_times_as_fast(line: tuple[float, ...], context: int) -> None:
    prompt, _ = unpredictable("prose")
    assert gain(prompt, prompt[50:250], line, context) > 3


def unpredictable(kind: str) -> tuple[list[int], list[int]]:
    """A prompt and what follows it, 400 tokens each."""
    dice = np.random.default_rng(1)
    if kind == "random":
        tokens = dice.integers(0, 49_000, 800).tolist()
    elif kind == "Zipf":
        tokens = (dice.zipf(1.3, 800) % 5000).tolist()
    else:
        text = Path(__file__).parents[2].joinpath("docs", "architecture.md").read_text("utf-8")
        tokens = [zlib.crc32(word.encode()) % 100_000 for word in re.findall(r"\w+|[^\w\s]", text)]
    return tokens[:400], tokens[400:800]


def gain(prompt: list[int], reply: list[int], line: tuple[float, ...], context: int) -> float:
    """How much faster the reply is written with drafts than without, if steps cost what the table says."""
    table, text, seconds = costs(**{f"c{context}": line}), SuffixIndex(prompt), 0.0
    drafts = Drafting(text, (HistoryDrafter(text, SuffixIndex()),), AcceptanceRates(), DraftCounter())
    pays = partial(best_length, costs=table, context=context, least_rows=1)
    rest = reply
    while rest:
        drafted = drafts.draft(min(15, len(rest) - 1), pays)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, rest, strict=False)))
        drafts.settle(rest[: right + 1])
        rest = rest[right + 1 :]
        seconds += table.seconds(len(drafted) + 1, context)
    return len(reply) * table.seconds(1, context) / seconds
