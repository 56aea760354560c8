"""The daemon as a process of its own, with a home of its own and, if a test wants, a worker of the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from agentserve.daemon.client import DaemonClient
from agentserve.daemon.paths import resolve_paths
from agentserve.daemon.snapshot import RequestRecord, StartupSnapshot
from package_index import without_machine_settings

_PROGRAM = Path(__file__).parent / "daemon/daemon_with_worker.py"
_STOP_S = 30
_END_S = 10


@dataclass(frozen=True)
class DaemonProcess:
    """A daemon whose default model is loaded."""

    port: int

    @property
    def url(self) -> str:
        """Where its API begins, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def ended(self, name: str) -> RequestRecord:
        """The record of a request as soon as it has ended, by the id of its answer or by its X-Request-ID."""
        # The daemon tells of itself every few seconds, whether something has changed or not.
        until = time.monotonic() + _END_S
        for snapshot in DaemonClient("127.0.0.1", self.port).snapshots():
            for record in snapshot.recent:
                if name in (record.id, record.request_id):
                    return record
            assert time.monotonic() < until, f"{name} has not ended"
        raise AssertionError("the daemon went away")


@contextmanager
def daemon_process(
    home: Path, config: str, worker: Sequence[str] = (), **environment: str
) -> Iterator[DaemonProcess]:
    """Starts a daemon with the text of a config.toml, and stops it at the end of the block.

    `worker` is the program of its workers, and what follows their descriptor.
    """
    variables = {"AGENTSERVE_HOME": str(home), "AGENTSERVE_PORT": "0", **environment}
    paths = resolve_paths(variables)
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(config)
    program = [str(_PROGRAM), json.dumps(worker)] if worker else ["-m", "agentserve.daemon"]
    report, reported = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", *program, "--report-fd", str(reported)],
        env={**without_machine_settings(os.environ), **variables},
        stdin=subprocess.DEVNULL,
        pass_fds=[reported],
    )
    os.close(reported)
    try:
        yield DaemonProcess(_port_when_ready(report, paths.daemon_log))
    finally:
        process.terminate()
        code = process.wait(_STOP_S)
    assert code == 0


def _port_when_ready(report: int, log: Path) -> int:
    with open(report, "rb") as lines:
        told = [msgspec.json.decode(line, type=StartupSnapshot) for line in lines]
    assert told, "the daemon died at its start"
    assert told[-1].phase == "ready", f"{told[-1].error}; see {log}"
    return told[-1].port
