"""The way of one request's events from its worker to the task that answers it."""

from __future__ import annotations

import asyncio

from ...engine.protocol import RequestEvent

CAPACITY = 4096
"""Events that may wait for one reader: 30 s (`slow_reader_timeout`) of decoding at over 100 tokens per second."""


class EventChannel:
    """A bounded queue with one reader, used in the event loop alone. It never makes its writer wait."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._events: list[RequestEvent] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: RequestEvent) -> bool:
        """Hands over an event; False when the reader is too far behind or the channel has failed."""
        if self._error is not None or len(self._events) >= self._capacity:
            return False
        self._events.append(event)
        self._wake()
        return True

    def fail(self, error: Exception) -> None:
        """Ends the channel: the reader gets what was handed over, then `error`. The first error stays."""
        if self._error is None:
            self._error = error
            self._wake()

    async def receive(self, timeout: float | None = None) -> list[RequestEvent]:
        """All events that are there, oldest first; waits for the first one at most `timeout` seconds.

        An empty list means that the time is over. Raises the error that ended the channel.
        """
        if not self._events and self._error is None:
            await self._wait(timeout)
        if self._events:
            events, self._events = self._events, []
            return events
        if self._error is not None:
            raise self._error
        return []

    async def _wait(self, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
