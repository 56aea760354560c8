"""A real worker process with a tiny encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.messages.sessions import DeleteSession, ListSessions, SessionList, SessionRefused
from agentserve.engine.protocol import (
    Accepted,
    Cancel,
    CancelReason,
    Embed,
    Embedded,
    EmbeddingInput,
    Finished,
    Generate,
    GenerateRequest,
    ListPins,
    LoadFailed,
    LoadModel,
    PinList,
    PinRefused,
    Ready,
    Rejected,
    Shutdown,
    Started,
    Unpin,
)
from tiny_encoders import CONTEXT, DIMENSIONS, VOCABULARY, make_tiny_encoder
from worker_rig import TIMEOUT_S, WorkerProcess, worker_process

CLS, SEP, THE, DOG = (VOCABULARY.index(text) for text in ("[CLS]", "[SEP]", "the", "dog"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder().write(tmp_path_factory.mktemp("encoder") / "tiny.gguf")


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Iterator[tuple[WorkerProcess, Ready]]:
    with worker_process() as worker:
        ready = worker.load(LoadModel("tiny", str(tiny)))
        assert isinstance(ready, Ready)
        yield worker, ready


@pytest.fixture
def worker(loaded: tuple[WorkerProcess, Ready]) -> WorkerProcess:
    return loaded[0]


def vectors(worker: WorkerProcess, *inputs: EmbeddingInput, truncate: bool = False) -> np.ndarray:
    worker.send(Embed("r", inputs, truncate))
    events = worker.receive_until(Finished, Rejected)
    assert [type(event) for event in events] == [Accepted, Started, Embedded, Finished]
    embedded = events[2]
    assert isinstance(embedded, Embedded)
    return np.frombuffer(embedded.data, "<f4").reshape(len(inputs), embedded.dimensions)


def refusal(worker: WorkerProcess, *inputs: EmbeddingInput) -> Rejected:
    worker.send(Embed("r", inputs))
    event = worker.receive()
    assert isinstance(event, Rejected)
    return event


def test_it_says_what_it_is(loaded: tuple[WorkerProcess, Ready]) -> None:
    _, ready = loaded
    model = ready.model
    assert (model.architecture, model.dimensions, model.context_length) == ("bert", DIMENSIONS, CONTEXT)
    assert (model.vocab_size, model.kv_budget_bytes, model.speculative) == (len(VOCABULARY), 0, False)
    assert ready.self_test.passed


def test_text_and_tokens_give_the_same_vectors_of_length_one(worker: WorkerProcess) -> None:
    rows = vectors(worker, "The dog", (THE, DOG), (CLS, THE, DOG, SEP), "the fox")
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])
    assert np.abs(rows[0] - rows[3]).max() > 0.01
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_a_text_that_is_too_long_is_refused_or_cut(worker: WorkerProcess) -> None:
    long = "dog " * CONTEXT
    rejected = refusal(worker, "dog", long)
    assert (rejected.status, rejected.code, rejected.param) == (400, "context_length_exceeded", "input[1]")
    assert (rejected.prompt_tokens, rejected.context_length) == (CONTEXT + 2, CONTEXT)
    cut, exact = vectors(worker, long, "dog " * (CONTEXT - 2), truncate=True)
    np.testing.assert_array_equal(cut, exact)


@pytest.mark.parametrize("token", [-1, len(VOCABULARY), 2**70])
def test_a_token_that_the_model_lacks_is_refused(worker: WorkerProcess, token: int) -> None:
    rejected = refusal(worker, (THE, token))
    assert (rejected.status, rejected.code, rejected.param) == (400, "invalid_value", "input")
    assert f"{token} is no token of this model, which has {len(VOCABULARY)}" in rejected.message


def test_what_it_can_not_do_is_answered(worker: WorkerProcess) -> None:
    worker.send(Generate(GenerateRequest("g", prompt="hi")))
    generate = worker.receive()
    assert isinstance(generate, Rejected)
    assert (generate.request_id, generate.status, generate.code) == ("g", 400, "invalid_chat_model")
    for question, answer in (
        (ListPins("q"), PinList),
        (Unpin("q", "name"), PinRefused),
        (ListSessions("q"), SessionList),
        (DeleteSession("q", "name"), SessionRefused),
    ):
        worker.send(question)
        event = worker.receive()
        assert isinstance(event, answer)
        assert event.request_id == "q"


def test_unknown_cancellations_do_no_harm(worker: WorkerProcess) -> None:
    worker.send(Cancel("nobody", CancelReason.CLIENT))
    assert vectors(worker, "dog").shape == (1, DIMENSIONS)


def test_it_ends_when_it_is_told(tiny: Path) -> None:
    with worker_process() as worker:
        worker.load(LoadModel("tiny", str(tiny)))
        worker.send(Shutdown())
        assert worker.process.wait(TIMEOUT_S) == 0


def test_another_device_is_refused(tiny: Path) -> None:
    with worker_process() as worker:
        failed = worker.load(LoadModel("tiny", str(tiny), device="NPU"))
    assert isinstance(failed, LoadFailed)
    assert failed.code == "unsupported_device"


def test_a_chat_model_makes_no_embeddings() -> None:
    with worker_process() as worker:
        worker.load(LoadModel("reference", None))
        rejected = refusal(worker, "text")
    assert (rejected.status, rejected.code) == (400, "invalid_embedding_model")
