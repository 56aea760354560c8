"""The stream of snapshots: the whole state first, changes soon, silence where nothing changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from agentserve.daemon.api import events
from agentserve.daemon.client import DaemonClient
from agentserve.daemon.snapshot import StatusSnapshot
from agentserve.daemon.workers.process import Command
from raw_http import RawRequest

Fake = Callable[..., Command]
Serve = Callable[..., Any]


def snapshots(live: Any) -> Iterator[StatusSnapshot]:
    return DaemonClient("127.0.0.1", live.port).snapshots()


def first(feed: Iterator[StatusSnapshot], condition: Callable[[StatusSnapshot], bool]) -> StatusSnapshot:
    return next(snapshot for snapshot in feed if condition(snapshot))


def test_the_whole_state_comes_first_and_each_change_follows(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    feed = snapshots(live)
    now = next(feed)
    assert (now.port, now.workers[0].name, now.running, now.recent) == (live.port, "reference", (), ())
    with RawRequest(live, "deltas=2 hold", headers="X-Request-ID: r\r\n", stream=True):
        (running,) = first(
            feed, lambda one: bool(one.running) and one.running[0].tokens_generated == 2
        ).running
        assert (running.record.request_id, running.record.state) == ("r", "decode")
    (ended,) = first(feed, lambda one: bool(one.recent)).recent
    assert (ended.request_id, ended.terminal_state) == ("r", "cancelled")


def test_a_real_prefill_and_the_queue_behind_it_are_seen_on_their_way(serve: Serve) -> None:
    live = serve(reference_step=0.3)
    feed = snapshots(live)
    long = "word " * 3000
    with RawRequest(live, long, stream=True), RawRequest(live, long + "x", stream=True):
        under_way = first(feed, lambda one: any(0 < r.tokens_done < r.tokens_total for r in one.running))
        assert under_way.requests.active >= 1
        waiting = first(feed, lambda one: any(r.position == 1 for r in one.running))
        assert len(waiting.running) == 2


def test_nothing_is_sent_while_nothing_changes(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    live.until(lambda: live.daemon.router.supervisors()[0].facts.stats is not None)
    with httpx.stream("GET", f"{live.url}/agentserve/v1/events", timeout=1.0) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.iter_lines()
        event, _data, _end = (next(lines) for _ in range(3))
        assert event == "event: snapshot"
        with pytest.raises(httpx.ReadTimeout):
            next(lines)


def test_at_most_four_come_in_a_second(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    feed = snapshots(live)
    next(feed)
    with RawRequest(live, "deltas=9999 step=0.002", stream=True):
        began, count = time.monotonic(), 0
        for _ in feed:
            count += 1
            if time.monotonic() - began > 1.5:
                break
    assert 2 <= count <= 8


def test_all_listeners_share_one_look_and_too_many_are_refused(
    serve: Serve, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_LISTENERS", 2)
    live = serve(command=fake())
    with ExitStack() as listening:
        feeds = [
            listening.enter_context(httpx.stream("GET", f"{live.url}/agentserve/v1/events")).iter_lines()
            for _ in range(2)
        ]
        assert [next(feed) for feed in feeds] == ["event: snapshot"] * 2
        refused = httpx.get(f"{live.url}/agentserve/v1/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    listening.close()

    def served_again() -> bool:
        with httpx.stream("GET", f"{live.url}/agentserve/v1/events") as answer:
            return answer.status_code == 200

    deadline = time.monotonic() + 5
    while not served_again():
        assert time.monotonic() < deadline


def test_a_daemon_that_stops_ends_the_stream_at_once(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    feed = snapshots(live)
    next(feed)
    began = time.monotonic()
    live.shut_down(drain=True)
    *_, end = feed
    assert end.draining
    live.join()
    assert time.monotonic() - began < 2
