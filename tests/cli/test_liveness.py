"""The daemon answers while its engine works and its queue is full."""

from __future__ import annotations

import http.client
import time
from contextlib import ExitStack

from cli_process import Cli
from raw_http import RawRequest

QUEUED = 50
LIMIT_S = 0.25
"""20 ms is the target, which tests/bench/liveness.py checks; this is for a machine that others use too."""


def slowest_of_99_in_100(port: int, seconds: float) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("GET", "/health/live")
        assert connection.getresponse().read().startswith(b'{"status":"alive"')
        times.append(time.perf_counter() - began)
    connection.close()
    return sorted(times)[int(len(times) * 0.99)]


def test_the_daemon_is_alive_beside_a_prefill_and_beside_decoding_with_50_queued(cli: Cli) -> None:
    cli("up", "--reference-step", "0.05")
    client = cli.client()
    for words, phase in ((500, "prefill"), (2, "decode")):
        with ExitStack() as asking:
            for number in range(QUEUED + 1):
                text = f"{number} {'word ' * words}"
                asking.enter_context(RawRequest(client, text, stream=True, max_tokens=2000))
            now = next(
                snapshot
                for snapshot in client.snapshots()
                if any(one.record.state == phase for one in snapshot.running)
            )
            assert now.requests.active > QUEUED / 2
            assert slowest_of_99_in_100(client.port, 1.0) < LIMIT_S
        client.cancel_all()
