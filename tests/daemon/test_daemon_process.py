"""The daemon as its users start it: a process with a lock, a port, signals and an exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from agentserve.daemon import launch
from agentserve.daemon.client import ChatDelta, ChatEnd, DaemonClient
from agentserve.daemon.errors import AgentserveError, NotRunning, RequestError, StartError
from agentserve.daemon.instance import Instance, announced, instance_lock, running_instance
from agentserve.daemon.paths import Paths
from agentserve.daemon.snapshot import StartupSnapshot

TIMEOUT_S = 20


class Process:
    """A daemon started as `agentserve up` starts it, with its report pipe."""

    def __init__(self, paths: Paths, *arguments: str) -> None:
        home = paths.config_dir.parent
        environ = {key: value for key, value in os.environ.items() if not key.startswith("AGENTSERVE_")}
        reading, writing = os.pipe()
        command = [sys.executable, "-P", "-m", "agentserve.daemon", "--report-fd", str(writing), *arguments]
        self.popen = subprocess.Popen(
            command,
            pass_fds=(writing,),
            env=environ | {"AGENTSERVE_HOME": str(home)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        os.close(writing)
        self.report = os.fdopen(reading)

    def progress(self) -> list[StartupSnapshot]:
        """All report lines; returns when the daemon closes the pipe."""
        return [msgspec.json.decode(line, type=StartupSnapshot) for line in self.report]

    def wait(self) -> tuple[int, list[str]]:
        """The exit code and the lines of standard error."""
        _, errors = self.popen.communicate(timeout=TIMEOUT_S)
        return self.popen.returncode, errors.splitlines()

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate(timeout=TIMEOUT_S)
        self.report.close()


Start = Callable[..., Process]


@pytest.fixture
def start(paths: Paths) -> Iterator[Start]:
    """Starts daemons; by default of the reference model on a free port."""
    started: list[Process] = []

    def begin(*arguments: str, defaults: tuple[str, ...] = ("--mock", "--port", "0")) -> Process:
        started.append(Process(paths, *defaults, *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_daemon_reports_its_start_answers_and_ends_with_0(start: Start, paths: Paths) -> None:
    process = start()
    phases = process.progress()
    assert [phases[0].phase, phases[-1].phase] == ["starting", "ready"]
    assert {step.detail for step in phases if step.phase == "loading"} >= {"running the self-test"}
    assert (phases[0].pid, phases[0].port > 0) == (process.popen.pid, True)

    client = DaemonClient.discover(paths)
    status = client.status()
    assert (status.pid, status.port, status.default_model) == (process.popen.pid, phases[0].port, "reference")
    assert client.base_url == f"http://127.0.0.1:{status.port}/v1"
    worker = status.workers[0]
    assert worker.self_test is not None
    assert worker.self_test.passed
    assert worker.pid is not None

    client.shutdown()
    assert process.wait() == (0, [])
    assert not is_alive(worker.pid)
    with pytest.raises(NotRunning, match="agentserve up"):
        DaemonClient.discover(paths)
    assert not paths.instance_file.exists()
    assert "serves reference" in paths.daemon_log.read_text()


def test_the_client_streams_a_chat_with_its_end_and_its_errors(start: Start, paths: Paths) -> None:
    start().progress()
    client = DaemonClient.discover(paths)
    asked = [{"role": "user", "content": "hello"}]
    events = list(client.stream_chat(asked, model="reference", max_tokens=20, seed=5, temperature=None))
    end = events[-1]
    assert isinstance(end, ChatEnd)
    assert end.finish_reason in ("stop", "length")
    assert end.usage["prompt_tokens"] > 0
    assert end.record["prefix_action"]
    assert all(isinstance(event, ChatDelta) and event.text for event in events[:-1])
    with pytest.raises(RequestError, match="There is no model 'nope'") as missing:
        list(client.stream_chat(asked, model="nope"))
    assert (missing.value.status, missing.value.code, missing.value.param) == (
        404,
        "model_not_found",
        "model",
    )
    with pytest.raises(RequestError, match="temperature must be"):
        list(client.stream_chat(asked, model="reference", temperature=9))


def test_a_chat_that_breaks_off_is_an_error_and_not_an_end(start: Start, paths: Paths) -> None:
    start("--reference-step", "0.05").progress()
    client = DaemonClient.discover(paths)
    (worker,) = client.status().workers
    assert worker.pid is not None
    asked = [{"role": "user", "content": "hello"}]
    events = client.stream_chat(asked, model="reference", max_tokens=500, temperature=0)
    next(events)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(AgentserveError, match="broke off"):
        list(events)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(start: Start, paths: Paths, number: signal.Signals) -> None:
    process = start("--reference-step", "0.02")
    process.progress()
    client = DaemonClient.discover(paths)
    (worker,) = client.status().workers
    asked = [{"role": "user", "content": "hello"}]
    running = client.stream_chat(asked, model="reference", max_tokens=20, temperature=0)
    next(running)
    process.popen.send_signal(number)
    assert isinstance(list(running)[-1], ChatEnd)
    assert process.wait()[0] == 0
    assert worker.pid is not None
    assert not is_alive(worker.pid)


def test_a_second_signal_does_not_wait(start: Start, paths: Paths) -> None:
    process = start("--reference-step", "0.05", "--drain-timeout", "600")
    process.progress()
    client = DaemonClient.discover(paths)
    asked = [{"role": "user", "content": "hello"}]
    running = client.stream_chat(asked, model="reference", max_tokens=10_000, temperature=0)
    next(running)
    process.popen.terminate()
    wait_until(lambda: client.status().draining)
    process.popen.terminate()
    assert process.wait()[0] == 0
    with pytest.raises(AgentserveError, match="broke off"):
        list(running)


def test_no_worker_outlives_a_daemon_that_is_killed(start: Start, paths: Paths) -> None:
    process = start()
    process.progress()
    (worker,) = DaemonClient.discover(paths).status().workers
    process.popen.kill()
    process.wait()
    assert worker.pid is not None
    pid = worker.pid
    wait_until(lambda: not is_alive(pid))


def test_a_stale_instance_file_does_not_matter(start: Start, paths: Paths) -> None:
    first = start()
    first.progress()
    first.popen.kill()
    first.wait()
    assert paths.instance_file.exists()
    assert running_instance(paths) is None
    start().progress()
    assert DaemonClient.discover(paths).status().startup.phase == "ready"


def test_a_second_daemon_says_where_the_first_one_is(start: Start) -> None:
    first = start()
    port = first.progress()[0].port
    second = start()
    (last,) = second.progress()
    code, errors = second.wait()
    where = f"(pid {first.popen.pid}, port {port})"
    assert code == 1
    advice = "use `agentserve status`, or `agentserve down` to stop it"
    assert errors == [f"agentserve: agentserve is already running {where}; {advice}"]
    assert (last.phase, f"agentserve: {last.error}") == ("failed", errors[0])


def test_a_port_in_use_is_one_line_that_says_what_to_do(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start(defaults=("--mock", "--port", port))
        (last,) = process.progress()
        assert process.wait() == (1, [f"agentserve: {last.error}"])
    assert (
        last.error == f"Port {port} on 127.0.0.1 is in use; stop what uses it, or choose another with --port"
    )


def test_a_start_without_speculation_says_so(start: Start) -> None:
    process = start("--foreground", "--max-draft-tokens", "0")
    process.progress()
    process.popen.send_signal(signal.SIGTERM)
    assert any("speculation is off: max_draft_tokens is 0" in line for line in process.wait()[1])


def test_a_wrong_setting_ends_with_2(start: Start) -> None:
    process = start("--threads", "many")
    assert process.progress()[-1].phase == "failed"
    assert process.wait() == (2, ["agentserve: --threads: 'many' is wrong: expected a whole number"])


def test_a_default_model_that_nobody_has_ends_with_1(start: Start) -> None:
    process = start(defaults=("--model", "no-such-model", "--port", "0"))
    last = process.progress()[-1]
    code, errors = process.wait()
    assert (code, last.phase) == (1, "failed")
    assert last.error is not None
    assert "no-such-model" in last.error
    assert errors[-1] == f"agentserve: {last.error}"


def test_a_folder_that_is_a_file_is_named_with_advice(start: Start, paths: Paths) -> None:
    paths.runtime_dir.write_text("in the way")
    process = start()
    (last,) = process.progress()
    assert process.wait() == (1, [f"agentserve: {last.error}"])
    assert last.error is not None
    assert last.error.startswith(f"Can't write {paths.runtime_dir}")
    assert "AGENTSERVE_HOME" in last.error


def test_a_full_disk_is_named_with_advice(paths: Paths) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(paths.instance_file))
    with pytest.raises(StartError, match="the disk is full; free some space"), launch._one_line_errors(paths):
        raise full


def test_a_host_without_an_address_is_one_line() -> None:
    with pytest.raises(StartError, match="has no address; check the setting host"):
        launch.bind("no such host", 0)


def test_the_instance_file_is_there_for_as_long_as_it_is_announced(paths: Paths) -> None:
    paths.runtime_dir.mkdir(parents=True)
    instance = Instance(os.getpid(), "127.0.0.1", 5, 1.0, "0")
    with instance_lock(paths), announced(paths, instance):
        assert running_instance(paths) == instance
        assert list(paths.runtime_dir.glob("*.json")) == [paths.instance_file]
    assert running_instance(paths) is None
    assert not paths.instance_file.exists()


def test_a_lock_without_a_file_or_with_a_dead_pid_is_no_running_daemon(paths: Paths) -> None:
    paths.runtime_dir.mkdir(parents=True)
    with instance_lock(paths):
        assert running_instance(paths) is None
        paths.instance_file.write_text("{")
        assert running_instance(paths) is None
        with announced(paths, Instance(2**22 + 1, "127.0.0.1", 5, 1.0, "0")):
            assert running_instance(paths) is None


def test_a_client_of_a_daemon_that_is_gone_says_so() -> None:
    with launch.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NotRunning):
        DaemonClient("127.0.0.1", port).status()


def test_the_daemon_without_its_worker_is_small_and_loads_nothing_heavy() -> None:
    code = """
import json, sys
import agentserve.daemon.launch
heavy = {"torch", "openvino", "transformers", "numpy", "tokenizers", "gguf", "httpx", "typer", "rich"}
print(json.dumps(sorted(heavy & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_daemon_stays_under_90_mb(start: Start, paths: Paths) -> None:
    start().progress()
    client = DaemonClient.discover(paths)
    for _ in range(20):
        list(client.stream_chat([{"role": "user", "content": "x"}], model="reference", max_tokens=50))
    assert client.status().rss_bytes < 90e6


def test_health_answers_in_50_ms_during_a_long_stream(start: Start, paths: Paths) -> None:
    start("--reference-step", "0.005").progress()
    client = DaemonClient.discover(paths)
    asked = [{"role": "user", "content": "hello"}]
    running = client.stream_chat(asked, model="reference", max_tokens=2000, temperature=0)
    next(running)
    times = []
    with httpx.Client(base_url=f"http://127.0.0.1:{client.port}") as http:
        for _ in range(100):
            began = time.monotonic()
            assert http.get("/health/live").status_code == 200
            times.append(time.monotonic() - began)
    running.close()
    assert sorted(times)[98] < 0.05


def test_closing_a_streamed_chat_cancels_it(start: Start, paths: Paths) -> None:
    start("--reference-step", "0.02").progress()
    client = DaemonClient.discover(paths)
    asked = [{"role": "user", "content": "hello"}]
    events = client.stream_chat(asked, model="reference", max_tokens=5000, temperature=0)
    next(events)
    events.close()
    wait_until(lambda: client.status().requests.cancelled == 1)


def process_tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("is_busy", [False, True])
def test_no_process_is_left_after_any_end(start: Start, paths: Paths, signals: int, is_busy: bool) -> None:
    # One signal drains for a moment and gives up what still runs; a second one does not even wait for that.
    drain_s = "0.3" if signals == 1 else "600"
    process = start("--reference-step", "0.05", "--drain-timeout", drain_s)
    process.progress()
    client = DaemonClient.discover(paths)
    if is_busy:
        asked = [{"role": "user", "content": "text 47"}]
        running = client.stream_chat(asked, model="reference", temperature=0)
        next(running)
    tree = process_tree(process.popen.pid)
    assert len(tree) == 2
    for number in range(signals):
        process.popen.terminate()
        if is_busy and number == 0:
            wait_until(lambda: client.status().draining)
    assert process.wait()[0] == 0
    _, alive = psutil.wait_procs(tree, timeout=TIMEOUT_S)
    assert not alive
    if is_busy:
        with pytest.raises(AgentserveError, match="broke off"):
            list(running)
