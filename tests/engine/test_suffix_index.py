"""The index finds what a search of the whole text finds, whatever was appended, cut and asked before."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
from agentserve.engine.drafting.suffix_index import LEVELS, SEPARATOR, SuffixIndex
from hypothesis import given
from hypothesis import strategies as st

FEW_WORDS = st.lists(st.integers(0, 3), max_size=120)


def longest_level(text: list[int], query: list[int], same: bool) -> int:
    """The longest level at which the end of `query` stands in `text` with something behind it, by plain search."""
    last = len(text) - 1 if same else len(text)
    for level in reversed(LEVELS):
        if level <= len(query) and any(
            text[end - level : end] == query[-level:] for end in range(level, min(last + 1, len(text)))
        ):
            return level
    return 0


@given(FEW_WORDS)
def test_the_longest_match_in_its_own_text_is_found(text: list[int]) -> None:
    index = SuffixIndex(text)
    found = index.continuation(index, 8)
    assert (found.level if found else 0) == longest_level(text, text, same=True)


@given(FEW_WORDS, FEW_WORDS)
def test_the_longest_match_in_another_text_is_found(text: list[int], asking: list[int]) -> None:
    found = SuffixIndex(text).continuation(SuffixIndex(asking), 8)
    level = found.level if found else 0
    assert level == longest_level(text, asking, same=False)
    if found:
        window = [*asking[-level:], *found.tokens]
        assert any(text[i : i + len(window)] == window for i in range(len(text)))


@given(FEW_WORDS, FEW_WORDS, st.integers(0, 120))
def test_token_by_token_in_bulk_and_after_a_cut_it_is_the_same_index(
    kept: list[int], more: list[int], extra: int
) -> None:
    whole = SuffixIndex([*kept, *more])
    single, cut = SuffixIndex(), SuffixIndex([*kept, *[1, 2, 3] * extra])
    for token in [*kept, *more]:
        single.extend((token,))
    cut.truncate(len(kept))
    cut.extend(more)
    expected = whole.continuation(whole, 16)
    assert single.continuation(single, 16) == expected
    assert cut.continuation(cut, 16) == expected
    assert cut.tokens.tolist() == [*kept, *more]


def test_of_equally_long_matches_the_most_frequent_continuation_is_taken_and_then_the_latest() -> None:
    text = [7, 8, 1, 50, 7, 8, 2, 51, 7, 8, 1, 52, 7, 8, 3, 53, 7, 8]
    index = SuffixIndex(text)
    found = index.continuation(index, 2)
    assert found is not None
    assert (found.level, found.tokens) == (2, (1, 52))


def test_a_longer_match_goes_before_a_more_frequent_one() -> None:
    text = [1, 2, 3, 4, 90, *[9, 3, 4, 91] * 5, 1, 2, 3, 4]
    index = SuffixIndex(text)
    found = index.continuation(index, 1)
    assert found is not None
    assert (found.level, found.tokens) == (4, (90,))


def test_a_text_that_repeats_itself_is_continued_beyond_its_end() -> None:
    index = SuffixIndex([5, 6, 7] * 4)
    found = index.continuation(index, 10)
    assert found is not None
    assert found.tokens == (5, 6, 7, 5, 6, 7, 5, 6, 7, 5)


def test_nothing_crosses_a_separator() -> None:
    past = SuffixIndex([1, 2, SEPARATOR, 3, 4, 5, SEPARATOR])
    assert past.continuation(SuffixIndex([1, 2]), 4) is None
    found = past.continuation(SuffixIndex([3, 4]), 4)
    assert found is not None
    assert found.tokens == (5,)


def test_the_common_beginning_is_counted() -> None:
    index = SuffixIndex([1, 2, 3])
    assert [index.common(t) for t in ([1, 2, 3, 4], [1, 2], [1, 9, 3], [])] == [3, 2, 1, 0]


@pytest.mark.parametrize("length", [5_000, 50_000, 100_000])
def test_a_look_up_takes_microseconds_at_any_length(length: int) -> None:
    """The bound is 20 µs on a quiet machine (tests/bench/speculation.py); a busy one may take some times that."""
    random = np.random.default_rng(3)
    # Zipf's law, so that some tokens are everywhere, as in text.
    text = (random.zipf(1.2, length) % 5000).tolist()
    index, seconds = SuffixIndex(text), list[float]()
    for token in (random.zipf(1.2, 300) % 5000).tolist():
        begun = time.perf_counter()
        index.continuation(index, 15)
        seconds.append(time.perf_counter() - begun)
        index.extend((token,))
    assert statistics.median(seconds) < 100e-6
