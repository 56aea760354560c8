"""Starts the daemon as a process of its own and follows its start until it is ready or has failed.

The daemon reports on a pipe, one `StartupSnapshot` as JSON a line, and closes it when the start is over. What
it says on standard error before its log is open goes to an unlinked file, which is read if it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from ..daemon.config import to_arguments
from ..daemon.errors import StartError
from ..daemon.snapshot import StartupSnapshot
from .options import Flags
from .progress import Report

STOP_WAIT_S = 10.0


def daemon_command(flags: Flags) -> list[str]:
    """The command line of the daemon; -P keeps the working folder, often somebody's project, off its path."""
    return [sys.executable, "-P", "-m", "agentserve.daemon", *to_arguments(flags)]


def start_detached(flags: Flags, report: Report) -> StartupSnapshot:
    """Blocks until the daemon is ready. Raises StartError with the daemon's own reason.

    On KeyboardInterrupt the half-started daemon is stopped before the exception goes on.
    """
    with tempfile.TemporaryFile() as stderr:
        process, reports = _spawn(flags, stderr)
        try:
            with reports:
                return _follow(reports, report) or _raise_why(process, stderr)
        except BaseException:
            _stop(process)
            raise


def startup_text(snapshot: StartupSnapshot) -> str:
    """What the daemon is doing, as one short line: `smollm2: downloading`, `loading: compiling`."""
    if not snapshot.detail:
        return snapshot.phase
    return snapshot.detail if snapshot.phase == "pulling" else f"{snapshot.phase}: {snapshot.detail}"


def _spawn(flags: Flags, stderr: IO[bytes]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [*daemon_command(flags), "--report-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(writing,),
            cwd="/",
            env=_environment(os.environ),
            start_new_session=True,
        )
    finally:
        os.close(writing)
    return process, os.fdopen(reading, "rb")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The daemon lives in `/`, so that it keeps no folder busy: relative folders are resolved before."""
    folders = {name: environ[name] for name in ("AGENTSERVE_HOME", "AGENTSERVE_MODELS") if environ.get(name)}
    return {**environ, **{name: str(Path(path).expanduser().absolute()) for name, path in folders.items()}}


def _follow(reports: IO[bytes], report: Report) -> StartupSnapshot | None:
    """The report that the daemon is ready; None when the reports end without it. Raises StartError."""
    for snapshot in _snapshots(reports):
        if snapshot.phase == "ready":
            return snapshot
        if snapshot.phase == "failed":
            raise StartError(snapshot.error or "The daemon could not start; see `agentserve logs`")
        report(startup_text(snapshot), snapshot.bytes_done, snapshot.bytes_total)
    return None


def _snapshots(reports: IO[bytes]) -> Iterator[StartupSnapshot]:
    for line in reports:
        yield msgspec.json.decode(line, type=StartupSnapshot)


def _raise_why(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> StartupSnapshot:
    code = process.wait(STOP_WAIT_S)
    stderr.seek(0)
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    ended = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    if code == 0:
        said = "The daemon was stopped before it was ready; `agentserve up` starts it again"
    elif lines:
        said = lines[-1].removeprefix("agentserve: ")
    else:
        said = f"The daemon {ended}; see `agentserve logs`"
    raise StartError(said)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a daemon whose start is not wanted any more; it drains nothing, as it serves nobody yet."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
