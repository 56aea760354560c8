"""HTTP bodies of generation: reading one with a cap, writing one as server-sent events, noticing a hang-up.

Plain ASGI messages on purpose: a token costs one `send` and no task, queue or wrapper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from starlette.types import Message, Receive, Scope, Send

from ..errors import BodyTooLarge
from ..records.ledger import ClientGone

Headers = Iterable[tuple[str, str]]

_EVENT_STREAM: Headers = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body. Raises BodyTooLarge once it is known to pass `limit` bytes, and ClientGone."""
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if int(announced) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return b"".join(chunks)


@asynccontextmanager
async def watched(receive: Receive, on_gone: Callable[[], object]) -> AsyncIterator[None]:
    """Runs the block and calls `on_gone` if the client hangs up meanwhile.

    The body must have been read. The server tells of a hang-up through `receive` and in no other way.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_gone()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Runs the block until it ends or the client hangs up, which raises ClientGone inside it."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def hang_up() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    try:
        async with watched(receive, hang_up):
            yield
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGone from None
        raise


class EventStream:
    """A response of server-sent events. Nothing is sent before `start`, and nothing after `end`.

    A stream that is left without `end` makes the server close the connection without the last chunk, which
    every client takes for a broken answer.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.ended = False

    async def start(self, headers: Headers) -> None:
        """Sends the status 200 and the headers."""
        self.started = True
        await self._send(response_start(200, (*_EVENT_STREAM, *headers)))

    async def write(self, frames: bytes) -> None:
        """Sends whole frames, if there are any; waits while the client reads slowly."""
        if frames:
            await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def end(self, frames: bytes) -> None:
        """Sends the last frames and ends the response."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": frames})


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """Sends a whole JSON response."""
    length = ("Content-Length", str(len(body)))
    await send(response_start(status, (("Content-Type", "application/json"), length, *headers)))
    await send({"type": "http.response.body", "body": body})


def response_start(status: int, headers: Headers) -> Message:
    """The ASGI message that opens a response. Header values are latin-1 and hold no control characters."""
    encoded = [(name.lower().encode("ascii"), _clean(value)) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def _clean(value: str) -> bytes:
    printable = "".join(character for character in value if character.isprintable())
    return printable[:1024].strip().encode("latin-1", "replace")


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes, the limit of this server (max_body)")
