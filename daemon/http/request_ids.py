"""The request id of every response: the client's own, cleaned, or one of ours."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.:-]")
_MAX_CHARACTERS = 128
_HEADER = b"x-request-id"


class RequestIds:
    """Middleware that stands outside of everything, so that no response leaves without an id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _choose(dict(scope["headers"]).get(_HEADER, b"").decode("latin-1"))
        scope["agentserve.request_id"] = request_id
        header = (_HEADER, request_id.encode("ascii"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self.app(scope, receive, send_with_id)


def request_id_of(scope: Scope) -> str:
    """The id of the request that `scope` belongs to."""
    request_id: str = scope["agentserve.request_id"]
    return request_id


def _choose(given: str) -> str:
    return _FORBIDDEN.sub("", given)[:_MAX_CHARACTERS] or f"req-{uuid.uuid4().hex}"
