"""Clients that misbehave in every way, and a worker that is killed again and again; then the daemon must be as before.

    python tests/chaos.py [--seconds 600] [--kill-every 60] [--clients 12] [--seed 1]

Runs the real daemon on the reference model in a home of its own. Ends with 1 and says what is wrong when a request
ended in no state or in two, or when blocks, files, tasks, threads, processes or memory of the daemon have leaked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from agentserve.daemon.snapshot import StatusSnapshot
from cli_process import Cli
from prometheus_client.parser import text_string_to_metric_families
from raw_http import LAST_CHUNK, RawRequest

SETTINGS = (
    "--reference-step",
    "0.002",
    "--slow-reader-timeout",
    "1",
    "--receive-timeout",
    "2",
    "--heartbeat",
    "0.2",
)
WARM_UP_REQUESTS = 1100
RSS_GROWTH = 1.05
SETTLE_S = 20.0
PATH = "/v1/chat/completions"


@dataclass
class Target:
    """The daemon that is mistreated; `port` as RawRequest wants it. `wrong` is what it answered and should not have."""

    port: int
    sent: Counter[str] = field(default_factory=Counter)
    wrong: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self) -> StatusSnapshot:
        answer = httpx.get(f"{self.url}/agentserve/v1/status", timeout=10)
        return msgspec.json.decode(answer.content, type=StatusSnapshot)

    def expect(self, answer: httpx.Response, what: str, *statuses: int) -> None:
        """Notes an answer that has none of these statuses."""
        if answer.status_code not in statuses:
            self.wrong.add(f"{what} gets {answer.status_code}: {answer.text[:300]}")

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        return families[name].samples[0].value


def prompt(dice: random.Random) -> str:
    """Some share a beginning, some are new, some are long."""
    return f"shared beginning {'word ' * dice.choice((3, 30, 300))}{dice.randrange(10**6)}"


def whole(target: Target, dice: random.Random) -> None:
    body = {"model": "reference", "messages": [{"role": "user", "content": prompt(dice)}], "max_tokens": 30}
    answer = httpx.post(f"{target.url}{PATH}", json=body, timeout=60)
    target.expect(answer, "a good request", 200, 429, 503)


def streamed(target: Target, dice: random.Random) -> None:
    with RawRequest(target, prompt(dice), stream=True, max_tokens=60) as raw:
        while LAST_CHUNK not in raw.received and (data := raw.socket.recv(65536)):
            raw.received += data


def hung_up(target: Target, dice: random.Random) -> None:
    with RawRequest(target, prompt(dice), stream=dice.random() < 0.7, max_tokens=500) as raw:
        if dice.random() < 0.7:
            raw.socket.settimeout(dice.uniform(0.001, 0.2))
            raw.socket.recv(dice.randrange(1, 2000))


def cancelled(target: Target, dice: random.Random) -> None:
    name = f"chaos-{dice.randrange(10**9)}"
    with RawRequest(
        target, prompt(dice), headers=f"X-Request-ID: {name}\r\n", stream=True, max_tokens=500
    ) as raw:
        time.sleep(dice.uniform(0, 0.2))
        httpx.delete(f"{target.url}/agentserve/v1/requests/{name}", timeout=10)
        raw.to_the_end()


def unread(target: Target, dice: random.Random) -> None:
    with RawRequest(target, prompt(dice), buffer=4096, stream=True, max_tokens=2000):
        time.sleep(dice.uniform(0.5, 2))


def malformed(target: Target, dice: random.Random) -> None:
    good = {"model": "reference", "messages": [{"role": "user", "content": "x"}]}
    wrong: Any = dice.choice(
        (
            b"{",
            b"\xff\xfe",
            b"[]",
            b"null",
            b'{"model":"reference"}',
            {**good, "model": "nobody"},
            {**good, "n": 0},
        )
    )
    content = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
    answer = httpx.post(f"{target.url}{PATH}", content=content, timeout=60)
    target.expect(answer, f"{content!r}", 400, 404)


def half_sent(target: Target, dice: random.Random) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode()
    with socket.create_connection(("127.0.0.1", target.port), timeout=5) as connection:
        connection.sendall(head[: dice.randrange(1, len(head) + 1)])
        time.sleep(dice.uniform(0, 0.5))


WAYS: tuple[Callable[[Target, random.Random], None], ...] = (
    whole,
    streamed,
    hung_up,
    cancelled,
    unread,
    malformed,
    half_sent,
)
# What may happen to a client here: the worker was killed, or it hung up itself.
EXPECTED = (httpx.HTTPError, OSError)


def misbehave(target: Target, seed: int, stop: threading.Event) -> None:
    dice = random.Random(seed)
    while not stop.is_set():
        way = dice.choice(WAYS)
        target.sent[way.__name__] += 1
        with contextlib.suppress(*EXPECTED):
            way(target, dice)


def kill_workers(target: Target, every: float, stop: threading.Event) -> None:
    while not stop.wait(every):
        for worker in target.status().workers:
            if worker.state == "ready" and worker.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                target.sent["killed workers"] += 1


@dataclass(frozen=True)
class State:
    """What must not grow."""

    rss: int
    files: int
    threads: int
    tasks: float
    processes: int

    @classmethod
    def of(cls, target: Target, daemon: psutil.Process) -> State:
        """Once nothing runs and every connection of ours is closed; as settled as it gets."""
        deadline = time.monotonic() + SETTLE_S
        least: State | None = None
        while time.monotonic() < deadline:
            now = cls(
                daemon.memory_info().rss,
                daemon.num_fds(),
                daemon.num_threads(),
                target.gauge("agentserve_tasks"),
                len(daemon.children(recursive=True)),
            )
            if now == least:
                return now
            least = now
            time.sleep(1.0)
        assert least is not None
        return least


@dataclass(frozen=True)
class Outcome:
    """`wrong` in words, empty if all is well; `done` counts what clients did."""

    wrong: list[str]
    done: dict[str, int]
    before: State
    after: State


def leaks(before: State, after: State) -> list[str]:
    """What has grown, in words."""
    counts = ("files", "threads", "tasks", "processes")
    grown = [
        f"{name}: {getattr(before, name):g} before, {getattr(after, name):g} after"
        for name in counts
        if getattr(after, name) > getattr(before, name)
    ]
    if after.rss > before.rss * RSS_GROWTH:
        grown.append(f"resident memory: {before.rss / 1e6:.1f} MB before, {after.rss / 1e6:.1f} MB after")
    return grown


def unbalanced(status: StatusSnapshot, log: Path) -> list[str]:
    """What is wrong with the books."""
    counts, found = status.requests, []
    files = (log, *log.parent.glob(f"{log.name}.*"))
    records = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    if counts.active or status.running:
        found.append(f"{counts.active} requests have not ended")
    if len({record["id"] for record in records}) != len(records):
        found.append("a request has two records")
    ended = Counter(record["terminal_state"] for record in records)
    told = {
        "done": counts.done,
        "cancelled": counts.cancelled,
        "error": counts.error,
        "rejected": counts.rejected,
    }
    if ended != Counter({state: count for state, count in told.items() if count}):
        found.append(f"the file says {dict(ended)}, the counts {told}")
    found += [f"{one.name} holds {one.blocks_used} blocks" for one in status.workers if one.blocks_used]
    return found


def unserved(target: Target) -> list[str]:
    """Whether a good request is still answered; one that finds a worker killed starts the next."""
    body = {"model": "reference", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    answer = httpx.post(f"{target.url}{PATH}", json=body, timeout=60)
    return [] if answer.status_code == 200 else [f"a good request gets {answer.status_code}: {answer.text}"]


def until_idle(target: Target) -> StatusSnapshot:
    deadline = time.monotonic() + SETTLE_S
    while True:
        status = target.status()
        busy = status.requests.active or any(
            one.blocks_used or one.state != "ready" for one in status.workers
        )
        if not busy or time.monotonic() > deadline:
            return status
        time.sleep(0.1)


def run(target: Target, seconds: float, kill_every: float, clients: int, seed: int) -> None:
    """Misbehaves for a time, and returns when everything that was begun is over."""
    stop = threading.Event()
    with ThreadPoolExecutor(clients + 1) as pool:
        jobs = [pool.submit(misbehave, target, seed * 1000 + i, stop) for i in range(clients)]
        jobs.append(pool.submit(kill_workers, target, kill_every, stop))
        stop.wait(seconds)
        stop.set()
    for job in jobs:
        job.result()


def warm_up(target: Target, seed: int) -> None:
    """Fills what is bounded: the records kept in memory, caches of code and of allocators."""
    body = {"model": "reference", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    with httpx.Client() as client, ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda _: client.post(f"{target.url}{PATH}", json=body, timeout=60), range(WARM_UP_REQUESTS)
        )
        assert all(answer.status_code == 200 for answer in answers)
    run(target, 5.0, 2.0, 8, seed + 1)
    whole(target, random.Random(seed))


def chaos(cli: Cli, seconds: float, kill_every: float, clients: int, seed: int) -> Outcome:
    """Starts the daemon, mistreats it, and looks at what is left."""
    started = cli("up", *SETTINGS)
    assert started.returncode == 0, started.stderr
    client = cli.client()
    assert client.instance is not None
    target, daemon = Target(client.port), psutil.Process(client.instance.pid)
    warm_up(target, seed)
    until_idle(target)
    before = State.of(target, daemon)
    target.sent.clear()
    run(target, seconds, kill_every, clients, seed)
    wrong = [*sorted(target.wrong), *unserved(target)]
    status = until_idle(target)
    after = State.of(target, daemon)
    wrong += leaks(before, after) + unbalanced(status, cli.paths.request_log)
    return Outcome(wrong, dict(target.sent), before, after)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kill-every", type=float, default=60)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="agentserve-chaos-") as home:
        cli = Cli(Path(home))
        try:
            outcome = chaos(cli, **vars(options))
        finally:
            cli("down", "--now")
    for way, count in sorted(outcome.done.items()):
        sys.stdout.write(f"{count:6d} {way.replace('_', ' ')}\n")
    sys.stdout.write(f"before: {outcome.before}\nafter:  {outcome.after}\n")
    for line in outcome.wrong:
        sys.stdout.write(f"WRONG: {line}\n")
    return int(bool(outcome.wrong))


if __name__ == "__main__":
    sys.exit(main())
