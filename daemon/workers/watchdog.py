"""Notices that a worker has something to do and does nothing: a native call that hangs answers no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls `on_stall` once when nothing was heard for `timeout` seconds after `start`. For the event loop alone."""

    def __init__(self, timeout: float, on_stall: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_stall = on_stall
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """There is work from now on; nothing changes if there was already."""
        if self._timer is None:
            self.heard()
            self._wait(self._timeout)

    def heard(self) -> None:
        """The worker has finished a step."""
        self._heard_at = asyncio.get_running_loop().time()

    def stop(self) -> None:
        """There is no work any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        # One timer for all: a sign of life must cost nothing, so it does not set a new one.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._heard_at + self._timeout - asyncio.get_running_loop().time()
        if left > 0:
            self._wait(left)
        else:
            self._timer = None
            self._on_stall()
