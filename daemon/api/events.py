"""`GET /agentserve/v1/events`: the daemon's state as server-sent events, for whoever draws it.

Each event is a whole StatusSnapshot: the first at once, the next when something has changed, at most 4 in a second,
and one every few seconds anyway. All listeners share one look at the daemon. A listener that reads slowly misses the
snapshots in between and keeps none of them waiting.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import Unavailable
from ..http.streams import EventStream, watched
from ..service import Service
from ..snapshot import StatusSnapshot

PERIOD_S = 0.25
REFRESH_S = 5.0
MAX_LISTENERS = 32


@dataclass(slots=True)
class Feed:
    """The last snapshot as a frame. `is_over` marks the last one, of a daemon that has nothing left to do."""

    service: Service
    frame: bytes = b""
    number: int = 0
    is_over: bool = False
    _shown: StatusSnapshot | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def next(self, seen: int) -> int:
        """Waits until there is a newer frame than the one numbered `seen`; returns its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.number > seen)
        return self.number

    async def run(self) -> None:
        """Looks at the daemon again and again until it is cancelled."""
        quiet = 0.0
        while True:
            snapshot = self.service.snapshot()
            steady = _without_noise(snapshot)
            quiet += PERIOD_S
            if steady != self._shown or quiet >= REFRESH_S:
                quiet = 0.0
                self._shown = steady
                await self._publish(snapshot)
            await asyncio.sleep(PERIOD_S)

    async def _publish(self, snapshot: StatusSnapshot) -> None:
        async with self._changed:
            self.frame = b"event: snapshot\ndata: %b\n\n" % msgspec.json.encode(snapshot)
            self.number += 1
            self.is_over = snapshot.draining and not snapshot.running
            self._changed.notify_all()


class Events:
    """ASGI application of the route. The shared task lives as long as there are listeners."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feed = Feed(service)
        self._task: asyncio.Task[None] | None = None
        self._listeners = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._listeners >= MAX_LISTENERS:
            raise Unavailable(
                f"{MAX_LISTENERS} clients listen to events already", code="too_many_listeners", retry_after=5
            )
        task = asyncio.current_task()
        assert task is not None
        self._listeners += 1
        try:
            async with watched(receive, task.cancel):
                await self._stream(EventStream(send))
        except asyncio.CancelledError:
            # The listener has gone: there is nobody to answer.
            task.uncancel()
        finally:
            self._listeners -= 1
            self._stop_when_alone()

    async def _stream(self, stream: EventStream) -> None:
        await stream.start(())
        if self._task is None:
            self._feed = Feed(self._service)
            self._task = asyncio.create_task(self._feed.run())
        seen = 0
        while not (seen and self._feed.is_over):
            seen = await self._feed.next(seen)
            await stream.write(self._feed.frame)
        await stream.end(b"")

    def _stop_when_alone(self) -> None:
        if self._listeners == 0 and self._task is not None:
            self._task.cancel()
            self._task = None


def events_route(service: Service) -> Route:
    """The route with a feed of its own."""
    return Route("/agentserve/v1/events", Events(service), methods=["GET"])


def _without_noise(snapshot: StatusSnapshot) -> StatusSnapshot:
    """What must change for an event: all but the clock and resident memory, which never rest."""
    workers = tuple(replace(worker, rss_bytes=0) for worker in snapshot.workers)
    return replace(snapshot, uptime_s=0.0, rss_bytes=0, workers=workers)
