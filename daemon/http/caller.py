"""Who sent a request, as far as records name it."""

from __future__ import annotations

from typing import NamedTuple

from starlette.types import Scope

from .request_ids import request_id_of

_MAX_CLIENT = 80


class Caller(NamedTuple):
    """The request id of the response's header, the route, and the program that asked (its User-Agent)."""

    request_id: str
    route: str
    client: str = ""


def caller_of(scope: Scope) -> Caller:
    """The caller of the request that `scope` belongs to; its User-Agent is cut after 80 characters."""
    agent = dict(scope["headers"]).get(b"user-agent", b"").decode("latin-1")
    client = "".join(character for character in agent[:_MAX_CLIENT] if character.isprintable())
    return Caller(request_id_of(scope), scope["path"], client)
