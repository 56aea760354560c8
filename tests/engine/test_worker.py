from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentserve.engine.protocol import (
    Accepted,
    Cancel,
    CancelReason,
    Finished,
    Generate,
    GenerateRequest,
    LoadFailed,
    LoadModel,
    Message,
    Ready,
    Rejected,
    SamplingParams,
    Shutdown,
    Started,
    TextDelta,
)
from gguf.constants import GGMLQuantizationType as Q
from tiny_models import write_tiny_gguf
from worker_rig import TIMEOUT_S, WorkerProcess, worker_process

SLOW = LoadModel("reference", None, reference_step_s=0.02)


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with worker_process() as process:
        yield process


def request(request_id: str, text: str = "hi", limit: int = 400, seed: int = 1) -> Generate:
    sampling = SamplingParams(temperature=1.0, seed=seed)
    return Generate(
        GenerateRequest(request_id, (Message("user", text),), sampling=sampling, max_new_tokens=limit)
    )


def test_a_request_goes_through_its_events_in_order(worker: WorkerProcess) -> None:
    ready = worker.load(LoadModel("reference", None))
    assert isinstance(ready, Ready)
    assert (ready.model.device, ready.self_test.passed) == ("mock", True)
    worker.send(request("r"))
    events = worker.receive_until(Finished)
    assert [type(e) for e in events if not isinstance(e, TextDelta)] == [Accepted, Started, Finished]


def test_a_request_that_does_not_fit_is_rejected_and_the_next_one_is_served(worker: WorkerProcess) -> None:
    worker.load(LoadModel("reference", None, max_context=64))
    worker.send(request("long", "x" * 500))
    refused = worker.receive()
    assert isinstance(refused, Rejected)
    assert (refused.status, refused.code, refused.context_length) == (400, "context_length_exceeded", 64)
    assert refused.prompt_tokens is not None
    assert refused.prompt_tokens > 500
    worker.send(request("short"))
    assert isinstance(worker.receive(), Accepted)


def test_an_output_limit_over_the_context_is_clipped_and_said(worker: WorkerProcess) -> None:
    worker.load(LoadModel("reference", None, max_context=64))
    worker.send(request("r", limit=32_000))
    accepted = worker.receive()
    assert isinstance(accepted, Accepted)
    assert accepted.clipped
    assert accepted.max_new_tokens + accepted.prompt_tokens == 64


def test_a_cancel_during_decode_ends_the_request(worker: WorkerProcess) -> None:
    worker.load(SLOW)
    worker.send(request("r"))
    worker.receive_until(TextDelta)
    worker.send(Cancel("r", CancelReason.CLIENT))
    end = worker.receive_until(Finished)[-1]
    assert isinstance(end, Finished)
    assert (end.finish_reason, end.cancel_reason) == ("cancelled", CancelReason.CLIENT)


def test_new_requests_are_accepted_while_a_step_runs(worker: WorkerProcess) -> None:
    worker.load(LoadModel("reference", None, reference_step_s=0.2))
    worker.send(request("first", limit=3))
    worker.receive_until(Started)
    worker.send(request("second", limit=3))
    events = worker.receive_until(Accepted)
    accepted = events[-1]
    assert isinstance(accepted, Accepted)
    assert (accepted.request_id, accepted.queue_position) == ("second", 1)
    assert not any(isinstance(event, Finished) for event in events)


def test_shutdown_ends_requests_as_cancelled_and_the_process_with_zero(worker: WorkerProcess) -> None:
    worker.load(SLOW)
    worker.send(request("r"))
    worker.receive_until(TextDelta)
    worker.send(Shutdown())
    end = worker.receive_until(Finished)[-1]
    assert isinstance(end, Finished)
    assert end.cancel_reason is CancelReason.SHUTDOWN
    assert worker.process.wait(TIMEOUT_S) == 0


def test_a_daemon_that_is_gone_ends_the_worker_in_the_middle_of_a_request(worker: WorkerProcess) -> None:
    worker.load(SLOW)
    worker.send(request("r"))
    worker.receive_until(TextDelta)
    worker.connection.close()
    assert worker.process.wait(TIMEOUT_S) == 1


def test_ctrl_c_in_the_terminal_is_left_to_the_daemon(worker: WorkerProcess) -> None:
    worker.load(LoadModel("reference", None))
    worker.process.send_signal(signal.SIGINT)
    worker.send(request("r"))
    assert isinstance(worker.receive_until(Finished)[-1], Finished)


def test_a_file_that_is_no_model_is_refused_by_reason(worker: WorkerProcess, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"no model at all")
    failed = worker.load(LoadModel("bad", str(path), "0" * 64))
    assert isinstance(failed, LoadFailed)
    assert failed.code == "corrupt_model"
    assert str(tmp_path) not in failed.message
    assert worker.process.wait(TIMEOUT_S) == 1


def test_a_real_graph_is_loaded_and_answers(worker: WorkerProcess, tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", "llama", tensor_type=Q.Q4_0, seed=1)
    ready = worker.load(
        LoadModel("tiny", str(tiny.path), "0" * 64, compile_cache_dir=str(tmp_path / "cache"))
    )
    assert isinstance(ready, Ready)
    assert (ready.model.device, ready.self_test.passed) == ("CPU", True)
    worker.send(request("r", limit=5))
    assert isinstance(worker.receive_until(Finished)[-1], Finished)


def test_a_model_says_how_it_writes_calls_and_that_it_is_not_told_of_tools(worker: WorkerProcess) -> None:
    ready = worker.load(LoadModel("reference", None, tool_format="hermes", reasoning_format="think"))
    assert isinstance(ready, Ready)
    assert (ready.model.tool_format, ready.model.reasoning_format) == ("hermes", "think")
    assert "the chat template takes no tools: this model is not told of any" in ready.model.notes


def test_an_unknown_format_fails_the_load_with_the_names(worker: WorkerProcess) -> None:
    failed = worker.load(LoadModel("reference", None, tool_format="xml"))
    assert isinstance(failed, LoadFailed)
    assert failed.code == "load_failed"
    assert failed.message.startswith("no tool format is called 'xml'; there are harmony, ")
