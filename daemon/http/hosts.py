"""Who may talk to the daemon: an allow-list of Host headers, and a hurdle for web pages of other sites.

A page whose name was re-bound to the loopback address sends that name as its Host. A page of another site
can send simple requests without asking, but a JSON content type makes the browser ask first, and it gets no
leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from ..config import Settings
from ..errors import InvalidRequest, RequestError
from .streams import response_start

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_WILDCARDS = ("0.0.0.0", "::")


class UnsupportedMediaType(InvalidRequest):
    """The body is not declared as JSON where that is demanded."""

    status = 415
    code = "unsupported_media_type"


class Host(NamedTuple):
    """A host in lower case without brackets, and a port where one is named."""

    name: str
    port: str | None


def parse_host(text: str) -> Host:
    """Splits `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address."""
    text = text.strip().lower()
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        return Host(name, rest.removeprefix(":") or None)
    if text.count(":") > 1:
        return Host(text, None)
    name, _, port = text.partition(":")
    return Host(name, port or None)


def allowed_hosts(settings: Settings) -> frozenset[Host]:
    """What Host headers may say: loopback names, the host that is listened on, and the configured ones."""
    own = () if settings.host in _WILDCARDS else (settings.host,)
    return frozenset(parse_host(host) for host in (*_LOOPBACK, *own, *settings.allowed_hosts))


class HostGuard:
    """Middleware that answers 421 to a Host that is not allowed."""

    def __init__(self, app: ASGIApp, allowed: frozenset[Host]) -> None:
        self.app = app
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = parse_host(_header(scope, b"host"))
        if host in self.allowed or host._replace(port=None) in self.allowed:
            await self.app(scope, receive, send)
            return
        body = b"This host is not allowed. Add it to the setting allowed_hosts.\n"
        await send(response_start(421, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]))
        await send({"type": "http.response.body", "body": body})


class OriginGuard:
    """Middleware that demands JSON of requests that a web page sends, and refuses compressed bodies."""

    def __init__(self, app: ASGIApp, refuse: Callable[[RequestError], ASGIApp]) -> None:
        self.app = app
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["method"] == "POST":
            try:
                _check_body_type(scope)
            except UnsupportedMediaType as error:
                app = self.refuse(error)
        await app(scope, receive, send)


def _check_body_type(scope: Scope) -> None:
    if _header(scope, b"content-encoding") not in ("", "identity"):
        raise UnsupportedMediaType("A compressed request body is not supported")
    media_type = _header(scope, b"content-type").partition(";")[0].strip().lower()
    if _header(scope, b"origin") and media_type != "application/json":
        raise UnsupportedMediaType("A request with an Origin must have the content type application/json")


def _header(scope: Scope, name: bytes) -> str:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers.get(name, b"").decode("latin-1")
