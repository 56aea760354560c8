"""Does the daemon answer while it works: `/health/live` beside a long prefill and decoding, with a full queue.

    python tests/bench/liveness.py [--model smollm2 | --mock] [--seconds 20]

Runs the real daemon in a home of its own. Fifty streams wait and one runs all the time, first with long prompts that
share nothing, then with short ones and long answers; one connection that is kept asks `/health/live` every few
milliseconds. What the engine was at is told by the daemon's own stream of snapshots.

Before that it asks an idle daemon, which tells what the machine itself takes, others on it included.

Target: p99 under 20 ms, in both phases.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentserve.daemon.client import DaemonClient
from agentserve.daemon.errors import AgentserveError
from agentserve.daemon.paths import Paths, resolve_paths
from figures import Target, finish
from startup import Command

STREAMS = 51
LIMIT_MS = 20.0
PAUSE_S = 0.005
PATIENCE_S = 60.0
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "sigma",
    "tau",
]


@dataclass
class Watch:
    """What the engine is at, and how many requests wait, as last told."""

    phase: str = "idle"
    queued: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def follow(self, client: DaemonClient) -> None:
        for snapshot in client.snapshots():
            states = {one.record.state for one in snapshot.running}
            self.phase = "prefill" if "prefill" in states else "decode" if "decode" in states else "idle"
            self.queued = snapshot.requests.queued
            if self.stop.is_set():
                return


def prompt(number: int, words: int) -> str:
    """Text that shares nothing with that of another number."""
    return " ".join(f"{WORDS[(number * 7 + i * i) % len(WORDS)]}{number + i % 17}" for i in range(words))


@dataclass(frozen=True)
class Load:
    """What is asked while the daemon is probed; only answers in this phase count."""

    phase: str
    words: int
    max_tokens: int


def keep_asking(client: DaemonClient, model: str, number: int, load: Load, stop: threading.Event) -> None:
    """One stream after another, each with a prompt that is new."""
    while not stop.is_set():
        messages = [{"role": "user", "content": prompt(number, load.words)}]
        try:
            for _ in client.stream_chat(messages, model=model, max_tokens=load.max_tokens):
                if stop.is_set():
                    return
        except AgentserveError:
            # The daemon is being stopped, or refuses: asked again until it is time to stop.
            stop.wait(0.2)
        number += STREAMS


def probed(port: int, watch: Watch, phase: str, seconds: float) -> list[float]:
    """Milliseconds of each answer before and after which the engine was in this phase."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before, began = watch.phase, time.perf_counter()
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        took = time.perf_counter() - began
        if before == watch.phase == phase:
            found.append(took * 1000)
        time.sleep(PAUSE_S)
    connection.close()
    return found


def measured(paths: Paths, model: str, load: Load, seconds: float) -> tuple[list[float], int]:
    """The answers' milliseconds, and how many requests waited when it began."""
    client, watch = DaemonClient.discover(paths), Watch()
    if load.phase == watch.phase:
        return probed(client.port, watch, load.phase, seconds), 0
    asking = [
        threading.Thread(target=keep_asking, args=(client, model, number, load, watch.stop))
        for number in range(STREAMS)
    ]
    following = threading.Thread(target=watch.follow, args=(client,))
    for thread in (following, *asking):
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while (watch.queued < STREAMS - 1 or watch.phase != load.phase) and time.monotonic() < deadline:
        time.sleep(0.05)
    queued = watch.queued
    found = probed(client.port, watch, load.phase, seconds)
    watch.stop.set()
    client.cancel_all()
    for thread in (*asking, following):
        thread.join(PATIENCE_S)
    return found, queued


def p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2", help="a model of the store")
    parser.add_argument("--mock", action="store_true", help="the built-in reference model, 50 ms a step")
    parser.add_argument("--words", type=int, default=2500, help="length of the long prompts")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    model = "reference" if options.mock else options.model
    loads = (Load("idle", 0, 0), Load("prefill", options.words, 16), Load("decode", 5, 1000))
    with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as home:
        own = {"AGENTSERVE_HOME": home, "AGENTSERVE_MODELS": str(resolve_paths().models)}
        agentserve = Command({**os.environ, **own})
        kind = ("--mock", "--reference-step", "0.05") if options.mock else ("--model", model)
        agentserve("up", "--port", "0", *kind)
        try:
            results = [(load, *measured(resolve_paths(own), model, load, options.seconds)) for load in loads]
        finally:
            agentserve("down", "--now")
    rows: list[tuple[str, ...]] = [("phase", "queued", "asked", "median, ms", "p99, ms", "most, ms")]
    targets: list[Target] = []
    for load, times, queued in results:
        figures = (f"{figure(times):.2f}" for figure in (statistics.median, p99, max))
        rows.append((load.phase, str(queued), str(len(times)), *figures))
        if load.phase == "idle":
            continue
        targets.append(Target(f"/health/live p99 in {load.phase}, ms", p99(times), LIMIT_MS, at_least=False))
    facts = {load.phase: times for load, times, _ in results}
    return finish(facts, [rows], targets, as_json=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
