"""A pass-through in front of the daemon that remembers what came in and how it was answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# They belong to one connection, not to the message.
_HOP_HEADERS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


@dataclass(frozen=True)
class Exchange:
    """One request and the status of its answer; `body` is what the client sent, `answer` grows while it is read."""

    method: str
    path: str
    body: bytes
    status: int
    answer: bytearray = field(default_factory=bytearray, repr=False)


class Recorder:
    """The exchanges so far, in the order in which their answers began."""

    def __init__(self, upstream: str) -> None:
        """`upstream` is the daemon's address without a path."""
        self._upstream = upstream
        self._exchanges: list[Exchange] = []
        self.port = 0

    @property
    def base_url(self) -> str:
        """What `OPENAI_BASE_URL` must be to be recorded."""
        return f"http://127.0.0.1:{self.port}/v1"

    def take(self) -> list[Exchange]:
        """The exchanges since the last call."""
        taken, self._exchanges = self._exchanges, []
        return taken

    def app(self) -> Starlette:
        """The pass-through as an application."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            # An agent waits for a slow answer as long as it likes; so must what stands between.
            async with httpx.AsyncClient(base_url=self._upstream, timeout=None, trust_env=False) as client:
                app.state.client = client
                yield

        return Starlette(routes=[Route("/{path:path}", self._pass_on, methods=_METHODS)], lifespan=lifespan)

    async def _pass_on(self, request: Request) -> StreamingResponse:
        client: httpx.AsyncClient = request.app.state.client
        body = await request.body()
        url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        asked = client.build_request(
            request.method, url, content=body, headers=_end_to_end(request.headers.items())
        )
        answer = await client.send(asked, stream=True)
        exchange = Exchange(request.method, request.url.path, body, answer.status_code)
        self._exchanges.append(exchange)
        return StreamingResponse(
            _noting(answer.aiter_raw(), exchange.answer),
            answer.status_code,
            _end_to_end(answer.headers.items()),
            background=BackgroundTask(answer.aclose),
        )


async def _noting(pieces: AsyncIterator[bytes], answer: bytearray) -> AsyncIterator[bytes]:
    async for piece in pieces:
        answer += piece
        yield piece


def _end_to_end(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP_HEADERS}


@contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    """A recorder on a free port of loopback, until the end of the block."""
    recorder = Recorder(upstream)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        recorder.port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(recorder.app(), log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield recorder
        finally:
            server.should_exit = True
            thread.join()
