"""What uvicorn does not bound: how many connections there are, how long one may take to send a request, and
how long one may leave its answer unread.

A connection that is over a bound is aborted, which frees its buffers at once; closing it would wait for a
client that does not read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...engine.protocol import CancelReason

_SLOW_READER = "agentserve.slow_reader"
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: 21\r\n\r\nToo many connections\n"
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times are seconds: `receive` for a whole request, `unread` with no progress while an answer waits to leave."""

    connections: int
    receive: float
    unread: float


def why_gone(scope: Scope) -> CancelReason:
    """Why a request is cancelled whose connection has closed: it was aborted because its answer was not read, or the
    client closed it."""
    return CancelReason.SLOW_READER if _SLOW_READER in scope else CancelReason.CLIENT


def bounded(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The protocol class that a server with these limits uses."""
    return type("BoundedConnection", (_Connection,), {"limits": limits})


class _Connection(H11Protocol):
    """One connection. Each timer is None while there is nothing to wait for."""

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._receiving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(_FULL)
            transport.close()
            return
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            self._stop_receiving()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.unread, self._is_not_read)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self._stop_unread()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def _await_request(self) -> None:
        """Runs the time for a request from its first byte, or from the connection's beginning."""
        if self._receiving is None:
            self._receiving = self.loop.call_later(self.limits.receive, self.transport.abort)

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _is_not_read(self) -> None:
        if self.scope is not None:
            scope: Scope = self.scope  # type: ignore[assignment]
            scope[_SLOW_READER] = True
        self.transport.abort()
