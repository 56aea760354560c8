"""The real command line as a process, with a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentserve.daemon.client import DaemonClient
from agentserve.daemon.errors import NotRunning
from agentserve.daemon.paths import Paths, resolve_paths
from package_index import without_machine_settings

COMMAND = (sys.executable, "-P", "-m", "agentserve.cli")


@dataclass(frozen=True)
class Cli:
    """Runs `agentserve` in a process, with everything it keeps below `home`."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **without_machine_settings(os.environ),
            "AGENTSERVE_HOME": str(self.home),
            "AGENTSERVE_MOCK": "1",
            "AGENTSERVE_PORT": "0",
            "TERM": "xterm",
            "COLUMNS": "120",
        }

    @property
    def paths(self) -> Paths:
        return resolve_paths(self.environment)

    def __call__(
        self, *arguments: str, stdin: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The finished process; no standard input means an empty one. An empty variable counts as not set."""
        return subprocess.run(
            [*COMMAND, *arguments],
            env={**self.environment, **environment},
            input=stdin or "",
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The process, running, with its output in pipes."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def client(self) -> DaemonClient:
        """Raises NotRunning."""
        return DaemonClient.discover(self.paths)

    def is_running(self) -> bool:
        try:
            self.client()
        except NotRunning:
            return False
        return True
