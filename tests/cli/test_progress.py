"""The moving line on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest
from agentserve.cli.progress import progress
from cli_process import COMMAND, Cli


def test_without_a_terminal_each_step_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as report:
        for done in range(0, 100, 10):
            report("downloading", done, 100)
        report("unpacking", 0, 100)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "downloading\nunpacking\n")


PROGRAM = """
import time
from agentserve.cli.progress import progress
with progress() as report:
    for done in range(0, 2000, 100):
        report("downloading", done, 2000)
        time.sleep(0.02)
    report("compiling", 0, 0)
"""


def on_a_terminal(command: list[str], environment: dict[str, str]) -> tuple[str, bytes]:
    """Standard output, and what a terminal as standard error was sent."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=inner, text=True)
    os.close(inner)
    shown = b""
    try:
        while chunk := os.read(outer, 4096):
            shown += chunk
    except OSError:  # the far end of a terminal ends with EIO
        pass
    os.close(outer)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return stdout, shown


def test_on_a_terminal_a_measured_step_has_bytes_and_the_line_is_cleared(cli: Cli) -> None:
    stdout, shown = on_a_terminal([COMMAND[0], "-c", PROGRAM], cli.environment)
    assert stdout == ""
    frames = [frame for frame in shown.split(b"\r") if frame.strip()]
    downloading = [frame for frame in frames if b"downloading" in frame]
    assert any(b"/2.0 kB" in frame and b"kB/s" in frame for frame in downloading), downloading
    compiling = [frame for frame in frames if b"compiling" in frame]
    assert compiling
    assert not any(b"kB" in frame for frame in compiling), compiling
    assert b"\x1b[2K" in shown, "the line is erased at the end"


def test_up_on_a_terminal_keeps_standard_output_for_data(cli: Cli) -> None:
    stdout, shown = on_a_terminal([*COMMAND, "up"], cli.environment)
    assert [line.split("=")[0] for line in stdout.splitlines()] == [
        "export OPENAI_BASE_URL",
        "export OPENAI_API_KEY",
    ]
    assert b"agentserve is ready: reference on mock" in shown
    assert b"starting the daemon\r\n" not in shown, "steps move in one line"
