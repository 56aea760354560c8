"""The embedding engine on a runner that tells what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from agentserve.engine.encoders.engine import FIRST_STEP_TOKENS, EmbeddingEngine
from agentserve.engine.encoders.model import Vectors
from agentserve.engine.encoders.queue import EmbeddingJob
from agentserve.engine.protocol import CancelReason, Embedded, Failed, Finished, RequestEvent, Started


class SumRunner:
    """A text's vector is its sum and its length; token 13 breaks the device, token 99 gives no number."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, ...]]] = []

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        self.steps.append([tuple(text) for text in texts])
        if any(13 in text for text in texts):
            raise RuntimeError("the device is gone")
        rows = [[np.nan if 99 in text else sum(text), len(text)] for text in texts]
        return np.array(rows, np.float32)


class Rig:
    def __init__(self, cache_size: int = 100) -> None:
        self.runner = SumRunner()
        self.events: list[RequestEvent] = []
        self.engine = EmbeddingEngine(self.runner, cache_size, self.events.append)

    def submit(self, name: str, *texts: tuple[int, ...]) -> None:
        self.engine.submit(EmbeddingJob(name, texts, 0.0))

    def run(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        try:
            return self.engine.step()
        except RuntimeError:
            self.engine.fail_step("embedding_failed", "broken")
            return True

    def of(self, name: str) -> list[RequestEvent]:
        return [event for event in self.events if event.request_id == name]

    def vectors(self, name: str) -> list[list[float]]:
        (embedded,) = [event for event in self.of(name) if isinstance(event, Embedded)]
        rows: list[list[float]] = (
            np.frombuffer(embedded.data, "<f4").reshape(-1, embedded.dimensions).tolist()
        )
        return rows

    def finished(self, name: str) -> Finished:
        last = self.of(name)[-1]
        assert isinstance(last, Finished)
        return last


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_vectors_come_in_the_order_of_the_texts(rig: Rig) -> None:
    rig.submit("a", (1,), (2, 3, 4), (5, 6))
    rig.run()
    assert [type(event) for event in rig.of("a")] == [Started, Embedded, Finished]
    assert rig.vectors("a") == [[1, 1], [9, 3], [11, 2]]
    finished = rig.finished("a")
    assert (finished.finish_reason, finished.prompt_tokens, finished.completion_tokens) == ("stop", 6, 0)
    assert rig.engine.load == 0


def test_texts_of_several_requests_share_a_step(rig: Rig) -> None:
    rig.submit("a", (1,), (2,))
    rig.submit("b", (3,), (2,))
    rig.run()
    assert rig.runner.steps == [[(1,), (3,), (2,)]]
    assert rig.vectors("b") == [[3, 1], [2, 1]]


def test_a_text_that_was_embedded_is_not_computed_again(rig: Rig) -> None:
    rig.submit("a", (1,), (2, 2))
    rig.run()
    rig.submit("b", (2, 2), (7,))
    rig.submit("c", (1,))
    rig.run()
    assert rig.runner.steps == [[(2, 2), (1,)], [(7,)]]
    assert rig.vectors("b") == [[4, 2], [7, 1]]
    assert [
        (event.prefix_action, event.cached_tokens) for event in rig.events if isinstance(event, Started)
    ] == [
        ("rebuild", 0),
        ("exact", 1),
        ("rebuild", 2),
    ]
    assert (rig.finished("b").cached_tokens, rig.finished("c").cached_tokens) == (2, 1)
    stats = rig.engine.stats()
    assert (stats.tokens_prefilled, stats.tokens_reused) == (4, 3)


def test_without_a_cache_everything_is_computed() -> None:
    rig = Rig(cache_size=0)
    for name in "ab":
        rig.submit(name, (1,))
        rig.run()
    assert rig.runner.steps == [[(1,)], [(1,)]]


def test_a_step_is_bounded(rig: Rig) -> None:
    texts = [(mark,) * 64 for mark in range(100, 100 + 2 * FIRST_STEP_TOKENS // 64)]
    rig.submit("a", *texts)
    rig.engine.step()
    assert rig.runner.steps == [texts[: FIRST_STEP_TOKENS // 64]]
    (progress,) = rig.engine.stats().progress
    assert (progress.phase, progress.tokens_done, progress.tokens_total) == ("prefill", 512, 1024)


def test_a_request_is_cancelled_between_two_steps(rig: Rig) -> None:
    rig.submit("a", *((mark,) * 400 for mark in (1, 2, 3)))
    rig.submit("b", (4,))
    rig.engine.step()
    rig.engine.cancel("a", CancelReason.API)
    rig.engine.cancel("nobody", CancelReason.API)
    rig.run()
    assert rig.finished("a").cancel_reason is CancelReason.API
    assert not any(isinstance(event, Embedded) for event in rig.of("a"))
    assert rig.vectors("b") == [[4, 1]]
    assert sum(len(step) for step in rig.runner.steps) == 2


def test_a_step_that_breaks_ends_the_requests_in_it_alone(rig: Rig) -> None:
    rig.submit("bad", (13,) * 400)
    rig.submit("good", (1,) * 400)
    rig.run()
    assert rig.of("bad")[-1] == Failed("bad", "embedding_failed", "broken")
    assert rig.vectors("good") == [[400, 400]]
    assert rig.engine.load == 0


def test_a_vector_that_is_not_finite_is_an_error_and_not_remembered(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.submit(name, (99,))
        rig.run()
        (failed,) = [event for event in rig.of(name) if isinstance(event, Failed)]
        assert failed.code == "embedding_failed"
    assert len(rig.runner.steps) == 2


def test_the_end_of_the_worker_ends_every_request(rig: Rig) -> None:
    rig.submit("a", *((mark,) * 400 for mark in (1, 2)))
    rig.engine.step()
    rig.submit("b", (4,))
    rig.engine.cancel_all(CancelReason.SHUTDOWN)
    assert {rig.finished(name).cancel_reason for name in "ab"} == {CancelReason.SHUTDOWN}
    assert not rig.engine.step()
