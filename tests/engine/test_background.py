"""The thread that does disk work in order."""

from __future__ import annotations

import threading

from agentserve.engine.background import Background


def test_actions_run_in_order_and_settle_waits_for_them() -> None:
    background, done = Background("test"), list[int]()
    for number in range(50):
        background.submit(lambda n=number: done.append(n))  # type: ignore[misc]
    assert background.settle(10)
    assert done == list(range(50))
    background.close(10)


def test_the_backlog_is_what_waits_and_room_is_told_once() -> None:
    background, gate, room = Background("test"), threading.Event(), list[int]()
    background.on_room = lambda: room.append(background.backlog)
    background.submit(lambda: bool(gate.wait(10)), 100)
    background.submit(lambda: None, 50)
    assert background.backlog == 150
    background.wait_for_room(50)
    assert not background.settle(0.01)
    gate.set()
    assert background.settle(10)
    assert room == [50]
    assert background.backlog == 0
    background.close(10)


def test_room_is_told_at_once_when_nothing_waits() -> None:
    background, told = Background("test"), threading.Event()
    background.on_room = told.set
    background.wait_for_room(0)
    assert told.wait(10)
    background.close(10)
