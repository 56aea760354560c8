"""`/agentserve/v1/requests`: the records of requests, running and ended, and how to cancel one.

A request is named by the id of its answer (`chatcmpl-…`, in every frame) or by its request id (X-Request-ID, which
clients may choose, and choose twice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...engine.protocol import CancelReason
from ..errors import InvalidRequest, NotFound
from ..records.ledger import Entry
from ..records.records import record_of
from ..records.request_state import RequestState
from ..service import Service
from ..snapshot import RequestRecord
from .health import json_response

PAGE = 50
LONGEST_PAGE = 1000
LARGEST_NUMBER = 10**18 - 1
"""Of a record, as far as a query may ask."""
STATES = frozenset(state.value for state in RequestState)


def request_routes(service: Service) -> list[Route]:
    """Listing, showing and cancelling requests."""

    async def listing(request: Request) -> Response:
        query = request.query_params
        limit, before = (
            _number(query.get("limit"), "limit", PAGE),
            _number(query.get("before"), "before", None),
        )
        assert limit is not None
        found = _matching(_all(service), query.get("state"), query.get("client"), query.get("session"))
        older = [one for one in found if before is None or one.number < before]
        shown = older[: min(limit, LONGEST_PAGE)]
        more = shown[-1].number if len(older) > len(shown) else None
        return json_response({"requests": shown, "before": more})

    async def one(request: Request) -> Response:
        return json_response(_named(service, request.path_params["id"]))

    async def cancel_one(request: Request) -> Response:
        name = request.path_params["id"]
        running = service.ledger.find(name)
        if not running:
            ended = _named(service, name)
            return json_response({"cancelled": [], "state": ended.state, "id": ended.id})
        return json_response({"cancelled": _cancel(running)})

    async def cancel_many(request: Request) -> Response:
        session, everything = request.query_params.get("session"), request.query_params.get("all")
        if (session is None) == (everything is None) or everything not in (None, "true"):
            raise InvalidRequest("Give either all=true or session=ID", param="all", code="invalid_value")
        running = list(service.ledger.active.values())
        return json_response({"cancelled": _cancel(_of_session(running, session) if session else running)})

    path = "/agentserve/v1/requests"
    return [
        Route(path, listing),
        Route(path, cancel_many, methods=["DELETE"]),
        Route(f"{path}/{{id}}", one),
        Route(f"{path}/{{id}}", cancel_one, methods=["DELETE"]),
        Route("/v1/requests/{id}/cancel", cancel_one, methods=["POST"]),
    ]


def _all(service: Service) -> list[RequestRecord]:
    """Every record there is, by its number, newest first."""
    running = (record_of(entry) for entry in service.ledger.active.values())
    return sorted((*running, *service.records.newest()), key=lambda record: -record.number)


def _matching(
    records: Iterable[RequestRecord], state: str | None, client: str | None, session: str | None
) -> Iterator[RequestRecord]:
    """Those in a state, of a client whose name holds a text, and of a session; None is any."""
    if state is not None and state not in STATES:
        raise InvalidRequest(
            f"state: {state!r} is none of {', '.join(sorted(STATES))}", param="state", code="invalid_value"
        )
    for record in records:
        is_client = client is None or client.lower() in record.client.lower()
        if is_client and state in (None, record.state) and session in (None, record.session_id):
            yield record


def find_record(service: Service, name: str) -> RequestRecord | None:
    """The newest record with this id or request id, of those that run and the last that ended."""
    return next((record for record in _all(service) if name in (record.id, record.request_id)), None)


def _named(service: Service, name: str) -> RequestRecord:
    """The newest record with this id or request id. Raises InvalidRequest with status 404."""
    return find_record(service, name) or _not_found(name)


def _of_session(entries: Iterable[Entry], session: str) -> list[Entry]:
    return [entry for entry in entries if record_of(entry).session_id == session]


def _cancel(entries: Iterable[Entry]) -> list[str]:
    """Cancels all of them and returns their ids."""
    chosen = list(entries)
    for entry in chosen:
        entry.cancel(CancelReason.API)
    return [entry.id for entry in chosen]


def _number(text: str | None, name: str, default: int | None) -> int | None:
    if text is None:
        return default
    # Python refuses to read thousands of digits.
    if not text.isascii() or not text.isdigit() or len(text) > len(str(LARGEST_NUMBER)) or int(text) < 1:
        raise InvalidRequest(f"{name}: expected a whole number from 1 on", param=name, code="invalid_value")
    return int(text)


def _not_found(name: str) -> NoReturn:
    text = f"There is no request {name!r} among those that run and the last that ended"
    raise NotFound(text, param="id", code="request_not_found")
