"""How quick the commands are: `up` to ready with a warm cache, `status`, and what the daemon weighs.

    python tests/bench/startup.py [--model smollm2] [--repeats 5]

Runs the real commands on a free port in a home of its own, with the model of the user's store. The first `up` fills
the cache and is not counted. `status` is the whole command, interpreter included.

Targets: `up` under 4 s, `status` under 0.4 s, the daemon without its worker under 90 MB resident.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentserve.daemon.paths import resolve_paths
from agentserve.daemon.store.registry import ModelStore
from figures import Target, finish

UP_S, STATUS_S, DAEMON_MB = 4.0, 0.4, 90.0
STATUS_RUNS = 5


@dataclass(frozen=True)
class Start:
    """One start of the daemon, in seconds and bytes; `status_s` is a median."""

    up_s: float
    status_s: float
    daemon_rss: int


@dataclass(frozen=True)
class Command:
    """Runs `agentserve`, with everything it keeps below one folder."""

    environment: Mapping[str, str]

    def __call__(self, *arguments: str) -> str:
        """Standard output. Raises CalledProcessError."""
        command = [sys.executable, "-P", "-m", "agentserve.cli", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def timed(self, *arguments: str) -> float:
        begun = time.perf_counter()
        self(*arguments)
        return time.perf_counter() - begun


def started(agentserve: Command, model: str) -> Start:
    """Starts, asks and stops."""
    up_s = agentserve.timed("up", "--model", model, "--port", "0")
    try:
        status_s = statistics.median(agentserve.timed("status") for _ in range(STATUS_RUNS))
        status = json.loads(agentserve("status", "--json"))
    finally:
        agentserve("down", "--now")
    return Start(up_s, status_s, status["rss_bytes"])


def measured(model: str, repeats: int) -> list[Start]:
    """Starts with a warm cache. Raises StoreError when the model is not in the store."""
    store = resolve_paths().models
    name = ModelStore(store).resolve(model).name
    with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as home:
        own = {"AGENTSERVE_HOME": home, "AGENTSERVE_MODELS": str(store)}
        # Installed packages come with compiled bytecode; a checkout has to be allowed to write its own.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        agentserve = Command({**inherited, **own})
        started(agentserve, name)
        return [started(agentserve, name) for _ in range(repeats)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2", help="a model of the store")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    starts = measured(options.model, options.repeats)
    series = {
        "up to ready, s": ([one.up_s for one in starts], UP_S),
        "status, s": ([one.status_s for one in starts], STATUS_S),
        "daemon resident, MB": ([one.daemon_rss / 1e6 for one in starts], DAEMON_MB),
    }
    rows: list[tuple[str, ...]] = [("figure", "median", "least", "most")]
    rows += [
        (name, *(f"{value:.3g}" for value in (statistics.median(values), min(values), max(values))))
        for name, (values, _) in series.items()
    ]
    targets = [
        Target(name, statistics.median(values), limit, at_least=False)
        for name, (values, limit) in series.items()
    ]
    facts = {"repeats": options.repeats, "runs": {name: values for name, (values, _) in series.items()}}
    return finish(facts, [rows], targets, as_json=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
