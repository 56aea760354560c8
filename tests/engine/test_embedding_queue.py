"""Which texts a step takes, and what a request still needs."""

from __future__ import annotations

import numpy as np
from agentserve.engine.encoders.cache import EmbeddingCache
from agentserve.engine.encoders.queue import EmbeddingJob, EmbeddingQueue

Step = list[tuple[str, int]]


def text(length: int, mark: int = 0) -> tuple[int, ...]:
    return (mark,) * length


def job(name: str, *lengths: int, cache: EmbeddingCache | None = None) -> EmbeddingJob:
    """A request of texts of these lengths, all different."""
    made = EmbeddingJob(name, [text(length, mark) for mark, length in enumerate(lengths)], 0.0)
    made.look_up(cache or EmbeddingCache(0))
    return made


def queue(*jobs: EmbeddingJob) -> EmbeddingQueue:
    filled = EmbeddingQueue()
    for one in jobs:
        filled.add(one)
    return filled


def steps(waiting: EmbeddingQueue, most_tokens: int) -> list[Step]:
    """All steps: whose texts they take, and of what length."""
    taken = []
    while step := waiting.next_step(most_tokens):
        taken.append([(one.request_id, len(tokens)) for one, tokens in step])
    return taken


def test_requests_take_turns_within_a_step() -> None:
    waiting = queue(job("a", 4, 4, 4, 4), job("b", 4), job("c", 4, 4))
    assert steps(waiting, 20) == [
        [("a", 4), ("b", 4), ("c", 4), ("a", 4), ("c", 4)],
        [("a", 4), ("a", 4)],
    ]


def test_the_one_that_did_not_fit_is_the_next() -> None:
    waiting = queue(job("a", 4, 4, 4), job("b", 4, 4, 4))
    assert steps(waiting, 12) == [[("a", 4), ("b", 4), ("a", 4)], [("b", 4), ("a", 4), ("b", 4)]]


def test_a_short_request_waits_for_one_step_of_a_long_list() -> None:
    waiting = queue(job("long", *[8] * 100))
    waiting.next_step(64)
    waiting.add(job("short", 3))
    assert ("short", 3) in [(one.request_id, len(tokens)) for one, tokens in waiting.next_step(64)]


def test_padding_counts_and_a_long_text_goes_alone() -> None:
    waiting = queue(job("a", 2, 9, 2, 40, 3))
    assert steps(waiting, 12) == [[("a", 40)], [("a", 9)], [("a", 3), ("a", 2), ("a", 2)]]


def test_equal_texts_are_computed_once_and_given_back_twice() -> None:
    twice = EmbeddingJob("a", [text(2), text(3), text(2)], 0.0)
    twice.look_up(EmbeddingCache(0))
    assert steps(queue(twice), 100) == [[("a", 3), ("a", 2)]]
    twice.vectors = {text(2): np.float32([1, 2]), text(3): np.float32([3, 4])}
    assert twice.is_done
    assert np.frombuffer(twice.data(), "<f4").tolist() == [1, 2, 3, 4, 1, 2]


def test_what_is_remembered_does_not_wait() -> None:
    cache = EmbeddingCache(8)
    cache.put(text(5, 1), np.float32([1]))
    half = job("a", 4, 5, cache=cache)
    assert (half.tokens, half.cached_tokens, half.tokens_left, half.is_done) == (9, 5, 4, False)
    assert job("b", cache=cache).is_done


def test_the_least_recently_used_vector_is_forgotten() -> None:
    cache = EmbeddingCache(2)
    for mark in (1, 2):
        cache.put(text(1, mark), np.float32([mark]))
    assert cache.get(text(1, 1)) is not None
    cache.put(text(1, 3), np.float32([3]))
    assert [cache.get(text(1, mark)) is not None for mark in (1, 2, 3)] == [True, False, True]


def test_a_cache_of_no_size_remembers_nothing() -> None:
    cache = EmbeddingCache(0)
    cache.put(text(1), np.float32([1]))
    assert len(cache) == 0
