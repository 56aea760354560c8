"""HTTP on raw sockets, for tests of bytes, hang-ups and silence."""

from __future__ import annotations

import json
import socket
from typing import Any, Self

LAST_CHUNK = b"0\r\n\r\n"


class RawRequest:
    """One HTTP request on a socket of its own; `buffer` is what the system keeps of an answer that nobody reads."""

    def __init__(self, live: Any, orders: str, *, headers: str = "", buffer: int = 0, **fields: Any) -> None:
        messages = [{"role": "user", "content": orders}]
        body = json.dumps({"model": "reference", "messages": messages, **fields}).encode()
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", live.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self.socket.sendall(head.encode() + body)
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.socket.close()

    def until(self, mark: bytes) -> bytes:
        """Reads until `mark` has come."""
        while mark not in self.received:
            data = self.socket.recv(65536)
            assert data, self.received
            self.received += data
        return self.received

    def to_the_end(self) -> bytes:
        """Reads until the server closes the connection."""
        while data := self.socket.recv(65536):
            self.received += data
        return self.received


def unchunked(response: bytes) -> bytes:
    """The body of a chunked response, as far as it came."""
    rest = response.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


def frames(response: bytes) -> list[Any]:
    """The frames of a stream; every one must be exactly `data: …` and an empty line."""
    parts = unchunked(response).split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: ") and b"\n" not in part for part in parts)
    return [part[6:] if part == b"data: [DONE]" else json.loads(part[6:]) for part in parts]
