"""logs: the end of the daemon's log, and what is added to it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

from ..daemon.errors import AgentserveError
from ..daemon.paths import Paths, resolve_paths
from . import output
from .diagnostics import say
from .serve import running_client

POLL_S = 0.2


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines to begin with.")] = 50,
) -> None:
    """Show the daemon's log."""
    paths = resolve_paths()
    path = paths.daemon_log
    try:
        log = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise AgentserveError(_no_log(paths)) from None
    if _is_of_another_daemon(paths, log):
        say("The daemon that runs has written nothing here; in the foreground it logs to its terminal")
    with log:
        for line in deque(log, maxlen=lines):
            output.piece(line)
        if follow:
            for text in added(path, log):
                output.piece(text)


def _no_log(paths: Paths) -> str:
    if running_client(paths) is None:
        return f"There is no log yet at {paths.daemon_log}; `agentserve up` starts one"
    return "The daemon runs in the foreground: its log is in the terminal where it was started"


def _is_of_another_daemon(paths: Paths, log: IO[str]) -> bool:
    client = running_client(paths)
    instance = client.instance if client is not None else None
    return instance is not None and os.fstat(log.fileno()).st_mtime < instance.started_at


def added(path: Path, log: IO[str]) -> Iterator[str]:
    """What is written to a file from now on, across rotations; never ends."""
    while True:
        if text := log.read():
            yield text
        elif _was_rotated(path, log):
            log = path.open(encoding="utf-8", errors="replace")
        else:
            time.sleep(POLL_S)


def _was_rotated(path: Path, log: IO[str]) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(log.fileno()))
    except FileNotFoundError:
        return False
