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
from ..daemon.paths import resolve_paths
from . import output

POLL_S = 0.2


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines to begin with.")] = 50,
) -> None:
    """Show the daemon's log."""
    path = resolve_paths().daemon_log
    try:
        log = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise AgentserveError(f"There is no log yet at {path}; `agentserve up` starts one") from None
    with log:
        for line in deque(log, maxlen=lines):
            output.piece(line)
        if follow:
            for text in added(path, log):
                output.piece(text)


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
