"""requests, cancel and status --watch against a daemon that runs."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from agentserve.daemon.snapshot import StatusSnapshot
from cli_process import Cli

LONG = "word " * 300


@pytest.fixture
def up(cli: Cli) -> Cli:
    assert cli("up", "--reference-step", "0.05").returncode == 0
    return cli


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def first(cli: Cli, condition: Callable[[StatusSnapshot], bool]) -> StatusSnapshot:
    return next(snapshot for snapshot in cli.client().snapshots() if condition(snapshot))


def test_a_request_is_a_row_and_a_json_object(up: Cli) -> None:
    assert up("run", "hello", "--max-tokens", "3").returncode == 0
    heads, row = up("requests").stdout.splitlines()
    assert heads.split()[:5] == ["REQUEST", "STARTED", "CLIENT", "MODEL", "STATE"]
    assert row.split()[0].startswith("req-")
    assert row.split()[2:5] == ["agentserve/0.1.0", "reference", "done"]
    (record,) = json.loads(up("requests", "--json").stdout)
    assert (record["terminal_state"], record["completion_tokens"]) == ("done", 3)
    assert up("requests", "--state", "rejected").stderr == "No such request\n"


def test_a_wrong_state_is_refused_with_those_there_are(up: Cli) -> None:
    done = up("requests", "--state", "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'nope' is none of cancelled, decode, done" in " ".join(done.stderr.split())


def test_cancel_ends_a_request_that_runs(up: Cli) -> None:
    with up.start("run", LONG) as asking:
        (one,) = first(
            up, lambda snapshot: any(r.record.state == "prefill" for r in snapshot.running)
        ).running
        assert up("cancel", one.record.request_id).stdout == f"{one.record.id}\n"
        _, said = asking.communicate(timeout=20)
    assert asking.returncode == 1
    assert "The request was cancelled by its id" in said
    again = up("cancel", one.record.request_id)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "It had ended before: cancelled\n"
    assert up("requests", "--state", "cancelled").stdout.count("cancelled (cancelled_by_id)") == 1


def test_cancel_all_and_an_unknown_id(up: Cli) -> None:
    assert up("cancel", "--all").stderr == "No request is running\n"
    unknown = up("cancel", "nope")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("Error: There is no request 'nope'")
    for wrong in ([], ["x", "--all"], ["--all", "--session", "s"]):
        assert up("cancel", *wrong).returncode == 2


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """What the process prints, as it comes."""
    shown: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            shown.append(line)  # noqa: PERF402 (each is to be seen when it comes)

    threading.Thread(target=read).start()
    return shown


def test_follow_shows_each_request_as_it_ends(up: Cli) -> None:
    up("run", "first", "--max-tokens", "1")
    with up.start("requests", "--follow", "--json") as following:
        shown = lines_of(following)
        until(lambda: len(shown) == 1)
        up("run", "second", "--max-tokens", "1")
        until(lambda: len(shown) == 2)
        following.terminate()
    assert [json.loads(line)["number"] for line in shown] == [1, 2]


def test_followed_rows_line_up_with_their_heads(up: Cli) -> None:
    up("run", "hello", "--max-tokens", "1")
    record = json.loads(up.paths.request_log.read_text())
    record["model"] = "smollm2:135m-instruct-q4_1"
    with up.paths.request_log.open("a") as log:
        log.write(f"{json.dumps(record)}\n")
    with up.start("requests", "--follow") as following:
        shown = lines_of(following)
        until(lambda: len(shown) == 3)
        following.terminate()
    heads, *rows = shown
    assert all(row[heads.index("STATE") :].startswith("done ") for row in rows)
    assert all(row[heads.index("OUT") :].startswith("1 ") for row in rows)


def test_follow_without_a_record_says_where_they_would_be(cli: Cli) -> None:
    done = cli("requests", "-f")
    assert done.returncode == 1
    assert str(cli.paths.request_log) in done.stderr


def test_watch_shows_what_runs_and_what_ended(up: Cli) -> None:
    with up.start("status", "--watch") as watching:
        shown = lines_of(watching)
        until(lambda: any(line.startswith("state") for line in shown))
        up("run", LONG, "--max-tokens", "1")
        until(lambda: any(line.startswith("ended") for line in shown))
        assert any(line.startswith("running") and "prompt " in line for line in shown)
        up("down")
        assert watching.wait(10) == 0
