"""Bounds on connections: clients that do not send, do not read, or are too many."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import psutil
import pytest
from agentserve.daemon.workers.process import Command
from raw_http import LAST_CHUNK, RawRequest, frames

Fake = Callable[..., Command]
Serve = Callable[..., Any]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
QUICK = {"model": "reference", "messages": [{"role": "user", "content": "deltas=1"}]}


def connect(live: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=10)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def connections(live: Any) -> int:
    return len(live.daemon._http.server_state.connections)


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/ch", HEAD, HEAD + b"\r\n{", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET"]
)
def test_a_request_that_is_not_sent_in_time_costs_its_connection(
    serve: Serve, fake: Fake, sent: bytes
) -> None:
    live = serve(command=fake(), receive_timeout=0.2)
    with connect(live) as half_open:
        half_open.sendall(sent)
        while not is_closed(half_open):
            pass
    live.until(lambda: connections(live) == 0)
    counts = live.call(live.daemon.service.ledger.counts)
    assert (counts.active, counts.received) == (0, counts.cancelled)


def test_a_long_answer_is_no_slow_request(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), receive_timeout=0.1, slow_reader_timeout=0.1)
    with RawRequest(live, "deltas=10 step=0.05", stream=True) as raw:
        assert frames(raw.until(LAST_CHUNK))[-1] == b"[DONE]"


def test_a_client_that_reads_slowly_but_steadily_gets_all(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), slow_reader_timeout=0.5)
    with RawRequest(live, "burst=3000 size=1000", stream=True) as raw:
        while LAST_CHUNK not in raw.received[-10:]:
            raw.received += raw.socket.recv(1 << 16)
            time.sleep(0.005)
    assert frames(raw.received)[-1] == b"[DONE]"


def test_what_is_over_the_limit_is_refused_and_the_rest_served(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake(), max_connections=3)
    with ExitStack() as held:
        idle = [held.enter_context(connect(live)) for _ in range(3)]
        live.until(lambda: connections(live) == 3)
        over = held.enter_context(connect(live))
        assert over.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert is_closed(over)
        idle.pop().close()
        live.until(lambda: connections(live) == 2)
        assert httpx.post(f"{live.url}/v1/chat/completions", json=QUICK).status_code == 200


def test_hundreds_that_never_read_are_dropped_and_their_memory_comes_back(serve: Serve, fake: Fake) -> None:
    """100 streams of 1 MB that nobody reads, and 200 half-open connections, beside one client that is served."""
    live = serve(
        command=fake(), slow_reader_timeout=0.5, receive_timeout=0.5, max_queue_depth=200, max_connections=400
    )
    daemon = psutil.Process()
    files, before = daemon.num_fds(), daemon.memory_info().rss
    with ExitStack() as held:
        for _ in range(200):
            held.enter_context(connect(live)).sendall(HEAD)
        for _ in range(100):
            held.enter_context(RawRequest(live, "burst=2000 size=500 hold", buffer=65536, stream=True))
        assert httpx.post(f"{live.url}/v1/chat/completions", json=QUICK, timeout=20).status_code == 200
        live.until(lambda: not live.daemon.service.ledger.active)
        live.until(lambda: connections(live) <= 1)
    counts = live.call(live.daemon.service.ledger.counts)
    assert (counts.done, counts.cancelled, counts.error) == (1, 100, 0)
    reasons = {record.reason for record in live.daemon.service.records.newest()}
    assert reasons == {None, "slow_reader"}
    assert daemon.num_fds() <= files + 5
    assert daemon.memory_info().rss < before + 30 * 2**20


@pytest.fixture
def crowd() -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_two_hundred_clients_on_a_queue_of_64_all_end_well(
    serve: Serve, crowd: list[threading.Thread]
) -> None:
    live = serve(max_queue_depth=64)
    answers: list[str | None] = []
    start = threading.Barrier(200)

    def ask(number: int) -> None:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=20, timeout=60) as client:
            start.wait(30)
            messages: Any = [{"role": "user", "content": f"number {number}"}]
            done = client.chat.completions.create(model="reference", messages=messages, max_tokens=20)
            answers.append(done.choices[0].finish_reason)

    crowd += [threading.Thread(target=ask, args=(number,)) for number in range(200)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(60)
    assert len(answers) == 200
    assert set(answers) <= {"stop", "length"}
    counts = live.call(live.daemon.service.ledger.counts)
    assert (counts.done, counts.error, counts.cancelled, counts.active) == (200, 0, 0, 0)
    assert counts.rejected > 0
