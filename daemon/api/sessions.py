"""`/agentserve/v1/sessions`: the conversations that the loaded models remember, and what can be done to one.

A salt keeps sessions apart as it keeps requests apart; it is asked for and never told.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...engine.messages.sessions import (
    DeleteSession,
    ForkSession,
    ListSessions,
    SessionDone,
    SessionInfo,
    SessionList,
    TruncateSession,
)
from ...engine.protocol import SessionCommand
from ..errors import Conflict, InvalidRequest, NotFound
from ..generation.extensions import session_id
from ..http.json_body import decode_own
from ..http.streams import read_body
from ..workers.router import Router
from ..workers.supervisor import Supervisor
from .health import json_response
from .questions import ask, loaded_workers, new_id

_MAX_BODY = 4096


class ForkBody(msgspec.Struct):
    """The id of the fork; None lets the worker choose one."""

    session_id: str | None = None


class TruncateBody(msgspec.Struct):
    """How many tokens to keep, or how many user turns to take back: exactly one of them."""

    tokens: int | None = None
    drop_turns: int | None = None


class _Found(NamedTuple):
    worker: Supervisor
    session: SessionInfo


def session_routes(router: Router) -> list[Route]:
    """Listing, showing, forking, cutting and forgetting sessions."""

    async def listing(request: Request) -> Response:
        query = request.query_params
        found = await _find(router, query.get("model"), query.get("salt"), None)
        found.sort(key=lambda one: one.session.last_used, reverse=True)
        return json_response({"sessions": [_object(*one) for one in found]})

    async def one(request: Request) -> Response:
        return json_response(_object(*await _named(router, request)))

    async def fork(request: Request) -> Response:
        wish = decode_own(await _body(request), ForkBody)
        name = session_id(wish.session_id, "session_id")
        found = await _named(router, request)
        command = ForkSession(new_id("session"), found.session.id, found.session.namespace, name)
        return json_response(await _done(found.worker, command), 201)

    async def truncate(request: Request) -> Response:
        wish = decode_own(await _body(request), TruncateBody)
        _check(wish)
        found = await _named(router, request)
        session = found.session
        command = TruncateSession(
            new_id("session"), session.id, session.namespace, wish.tokens, wish.drop_turns
        )
        return json_response(await _done(found.worker, command))

    async def remove(request: Request) -> Response:
        found = await _named(router, request)
        command = DeleteSession(new_id("session"), found.session.id, found.session.namespace)
        return json_response(await _done(found.worker, command) | {"deleted": True})

    path = "/agentserve/v1/sessions"
    return [
        Route(path, listing),
        Route(f"{path}/{{id}}", one),
        Route(f"{path}/{{id}}", remove, methods=["DELETE"]),
        Route(f"{path}/{{id}}/fork", fork, methods=["POST"]),
        Route(f"{path}/{{id}}/truncate", truncate, methods=["POST"]),
    ]


async def _find(router: Router, model: str | None, salt: str | None, name: str | None) -> list[_Found]:
    found: list[_Found] = []
    for worker in await loaded_workers(router, model):
        answer = await ask(worker, ListSessions(new_id("session"), salt, name))
        assert isinstance(answer, SessionList)
        found += [_Found(worker, session) for session in answer.sessions]
    return found


async def _named(router: Router, request: Request) -> _Found:
    """The session that a path names. Raises InvalidRequest: 404 when there is none, 409 when two models have one."""
    name, query = request.path_params["id"], request.query_params
    found = await _find(router, query.get("model"), query.get("salt") or "", name)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"There is no session {name!r}", param="id", code="session_not_found")
    models = " and ".join(worker.load.name for worker, _ in found)
    text = f"{models} have a session {name!r} each; say which with ?model="
    raise Conflict(text, param="model", code="session_ambiguous")


async def _done(worker: Supervisor, command: SessionCommand) -> dict[str, Any]:
    answer = await ask(worker, command)
    assert isinstance(answer, SessionDone)
    return _object(worker, answer.session)


def _object(worker: Supervisor, session: SessionInfo) -> dict[str, Any]:
    shown = asdict(session)
    shown["salted"] = bool(shown.pop("namespace"))
    return {"id": shown.pop("id"), "model": worker.load.name, **shown}


async def _body(request: Request) -> bytes:
    return await read_body(request.scope, request.receive, _MAX_BODY) or b"{}"


def _check(wish: TruncateBody) -> None:
    if (wish.tokens is None) == (wish.drop_turns is None):
        raise InvalidRequest("Give either tokens or drop_turns", param="tokens", code="invalid_value")
    for field, number in (("tokens", wish.tokens), ("drop_turns", wish.drop_turns)):
        if number is not None and number < 1:
            raise InvalidRequest(
                f"{field} must be at least 1, got {number}", param=field, code="invalid_value"
            )
