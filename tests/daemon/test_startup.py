"""How the default model gets here and into memory, and who is told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from agentserve.daemon.errors import PullError, StartError
from agentserve.daemon.paths import Paths
from agentserve.daemon.snapshot import StartupSnapshot
from agentserve.daemon.startup import Reporter
from agentserve.daemon.store.pull_progress import OnProgress, PullProgress, PullStage
from agentserve.daemon.store.registry import ModelStore
from agentserve.daemon.workers.process import Command

Fake = Callable[..., Command]
Put = Callable[[ModelStore, str, bytes], None]
Serve = Callable[..., Any]


def test_a_missing_default_model_is_pulled_and_the_bytes_are_shown_meanwhile(
    serve: Serve, fake: Fake, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    def pull(name: str, store: ModelStore, on_progress: OnProgress) -> None:
        on_progress(PullProgress(PullStage.DOWNLOADING, 0, 200))
        assert looked.wait(10)
        put(store, name, b"weights")

    monkeypatch.setattr("agentserve.daemon.startup.pull", pull)
    live = serve(command=fake(), mock=False, model="mini", ready=False)
    live.until(lambda: live.daemon.startup.state.phase == "pulling")
    startup = httpx.get(f"{live.url}/agentserve/v1/status").json()["startup"]
    looked.set()
    assert (startup["phase"], startup["detail"]) == ("pulling", "mini: downloading")
    assert (startup["bytes_done"], startup["bytes_total"]) == (0, 200)
    live.until(lambda: live.daemon.startup.state.phase == "ready")
    assert live.daemon.router.supervisors()[0].load.name == "mini:latest"


def test_a_pull_that_fails_ends_the_daemon_with_its_reason(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(*_arguments: object) -> None:
        raise PullError("the package index can't be reached")

    monkeypatch.setattr("agentserve.daemon.startup.pull", pull)
    live = serve(command=fake(), mock=False, model="mini", ready=False)
    live.join()
    assert isinstance(live.error, StartError)
    assert str(live.error) == "the package index can't be reached"


def test_a_default_model_that_can_not_be_loaded_ends_the_daemon_with_its_reason(
    serve: Serve, fake: Fake
) -> None:
    live = serve(command=fake("--fail-load", "corrupt_model"), ready=False)
    live.join()
    assert isinstance(live.error, StartError)
    assert "can't be loaded: the model file is cut off" in str(live.error)


def test_a_start_that_breaks_in_a_way_nobody_foresaw_ends_the_daemon_in_one_line(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(*_arguments: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("agentserve.daemon.startup.pull", pull)
    live = serve(command=fake(), mock=False, model="mini", ready=False)
    live.join()
    assert str(live.error) == "The start broke (RuntimeError: two lines); `agentserve logs` shows where"


def test_an_end_that_was_asked_for_while_loading_is_no_failure(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake("--slow-load", "30"), ready=False)
    live.until(lambda: live.daemon.startup.state.phase == "loading")
    live.shut_down(drain=True)
    live.join()
    assert live.error is None


def report_pipe() -> tuple[Reporter, Callable[[], list[StartupSnapshot]], int]:
    reading, writing = os.pipe()

    def lines() -> list[StartupSnapshot]:
        with os.fdopen(reading, "rb") as pipe:
            return [msgspec.json.decode(line, type=StartupSnapshot) for line in pipe]

    return Reporter(writing), lines, reading


def test_a_report_ends_with_its_last_phase() -> None:
    reporter, lines, _ = report_pipe()
    steps = [StartupSnapshot("loading", "compiling"), StartupSnapshot("failed", error="no")]
    for step in (*steps, StartupSnapshot("ready")):
        reporter.write(step)
    assert lines() == steps


def test_a_reader_that_does_not_read_costs_lines_and_never_time() -> None:
    reporter, lines, _ = report_pipe()
    for _ in range(3000):
        reporter.write(StartupSnapshot("pulling", "x" * 100))
    reporter.close()
    assert 0 < len(lines()) < 3000


def test_a_reader_that_is_gone_ends_the_report() -> None:
    reporter, _, reading = report_pipe()
    os.close(reading)
    for _ in range(2):
        reporter.write(StartupSnapshot("loading"))
    reporter.close()


def test_a_default_model_whose_file_is_gone_ends_the_daemon_with_advice(
    serve: Serve, fake: Fake, put: Put, paths: Paths
) -> None:
    store = ModelStore(paths.models)
    put(store, "mini", b"weights")
    store.resolve("mini").path.unlink()
    live = serve(command=fake(), mock=False, model="mini", ready=False)
    live.join()
    assert "The file of mini:latest is gone from the model store; run `agentserve rm" in str(live.error)


def test_an_alias_as_default_model_pulls_what_it_stands_for(
    serve: Serve, fake: Fake, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(name: str, store: ModelStore, _on_progress: OnProgress) -> None:
        put(store, name, b"weights")

    monkeypatch.setattr("agentserve.daemon.startup.pull", pull)
    live = serve(command=fake(), mock=False, model="gpt-5-mini", aliases={"gpt-5-mini": "mini"})
    assert live.daemon.router.supervisors()[0].load.name == "mini:latest"
