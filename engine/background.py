"""A thread that does disk work in order, so that the engine thread never waits for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

Action = Callable[[], None]


class _Item(NamedTuple):
    action: Action
    size: int


class Background:
    """Runs actions one by one. `size` bytes that an action holds in memory count as backlog until it is done.

    `on_room` is called on the thread when the backlog has shrunk to what `wait_for_room` asked for.
    """

    def __init__(self, name: str) -> None:
        self.on_room: Action = lambda: None
        self._wanted: int | None = None
        self._items: SimpleQueue[_Item | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._backlog = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Bytes that wait."""
        return self._backlog

    def submit(self, action: Action, size: int = 0) -> None:
        """Queues an action, which must handle its own errors."""
        with self._lock:
            self._backlog += size
        self._items.put(_Item(action, size))

    def wait_for_room(self, backlog: int) -> None:
        """Asks for one call of `on_room`, once no more than these bytes wait."""
        self._wanted = backlog
        # The backlog may have shrunk just before: an empty action looks again.
        self.submit(lambda: None)

    def settle(self, timeout: float | None = None) -> bool:
        """Waits until all that was submitted before is done; False when `timeout` seconds were not enough."""
        done = threading.Event()
        self.submit(done.set)
        return done.wait(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Ends the thread after what was submitted; waits for at most `timeout` seconds."""
        self._items.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            item.action()
            with self._lock:
                self._backlog -= item.size
            if self._wanted is not None and self._backlog <= self._wanted:
                self._wanted = None
                self.on_room()
