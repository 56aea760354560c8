"""`/agentserve/v1/pins`: prefixes that stay, by name.

A salt keeps pins apart as it keeps requests apart; it is asked for and never told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...engine.protocol import (
    GenerateRequest,
    ListPins,
    Pin,
    PinDone,
    PinInfo,
    PinList,
    Unpin,
    Unpinned,
)
from ..errors import InvalidRequest, NotFound
from ..http.json_body import decode_own, json_text
from ..http.streams import cancelled_on_disconnect, read_body
from ..openai.chat_schema import parse_chat
from ..records.ledger import ClientGone
from ..snapshot import RequestRecord
from ..workers.router import Router
from .health import json_response
from .questions import ask, loaded_workers, new_id


class PinBody(msgspec.Struct):
    """What to pin: `messages` (with `tools` as in a chat request), `text`, the prompt of the request `from`, or,
    without any of these, the stable prefix of the last request. Of it at most the first `tokens` tokens."""

    name: str
    model: str | None = None
    salt: str | None = None
    messages: Any = None
    tools: Any = None
    chat_template_kwargs: Any = None
    text: str | None = None
    from_request: str | None = msgspec.field(default=None, name="from")
    tokens: int | None = None
    ttl: float | None = None


def pin_routes(
    router: Router, max_body: int, find_record: Callable[[str], RequestRecord | None]
) -> list[Route]:
    """Making, listing, showing and removing pins. A model that is not loaded is loaded for the first and last.

    `find_record` knows recent requests by either of their ids.
    """

    async def make(request: Request) -> Response:
        wish = _parse(await read_body(request.scope, request.receive, max_body))
        if wish.from_request is not None and (record := find_record(wish.from_request)) is not None:
            wish.from_request, wish.model = record.id, wish.model or record.model
        async with (
            cancelled_on_disconnect(request.receive),
            router.hold(_model(router, wish.model)) as worker,
        ):
            await router.ready(worker)
            answer = await ask(worker, _pin(wish))
        assert isinstance(answer, PinDone)
        return json_response(_done(answer, worker.load.name), 201)

    async def listing(request: Request) -> Response:
        lists = await _lists(router, request.query_params.get("model"), request.query_params.get("salt"))
        pins = [_pin_object(pin, model) for model, found in lists for pin in found.pins]
        return json_response({"pins": pins, "models": [_budgets(found, model) for model, found in lists]})

    async def one(request: Request) -> Response:
        name, salt = request.path_params["name"], request.query_params.get("salt")
        for model, found in await _lists(router, request.query_params.get("model"), salt or ""):
            for pin in found.pins:
                if pin.name == name:
                    return json_response(_pin_object(pin, model))
        _not_found(name)

    async def remove(request: Request) -> Response:
        query = request.query_params
        command = Unpin(new_id("pin"), request.path_params["name"], query.get("salt", ""))
        async with router.hold(_model(router, query.get("model"))) as worker:
            await router.ready(worker)
            answer = await ask(worker, command)
        assert isinstance(answer, Unpinned)
        return json_response(_pin_object(answer.pin, worker.load.name) | {"removed": True})

    path = "/agentserve/v1/pins"
    return [
        Route(path, _unless_gone(make), methods=["POST"]),
        Route(path, listing),
        Route(f"{path}/{{name}}", one),
        Route(f"{path}/{{name}}", remove, methods=["DELETE"]),
    ]


def _unless_gone(handler: Any) -> Any:
    async def run(request: Request) -> Response:
        try:
            answer: Response = await handler(request)
        except ClientGone:
            # Nobody is there to read it.
            return Response(status_code=204)
        return answer

    return run


async def _lists(router: Router, model: str | None, salt: str | None) -> list[tuple[str, PinList]]:
    """The pins of each loaded model, or of one; loads nothing."""
    found: list[tuple[str, PinList]] = []
    for worker in await loaded_workers(router, model):
        answer = await ask(worker, ListPins(new_id("pin"), salt))
        assert isinstance(answer, PinList)
        found.append((worker.load.name, answer))
    return found


def _parse(body: bytes) -> PinBody:
    wish = decode_own(body, PinBody)
    given = [
        key
        for key, value in (("messages", wish.messages), ("text", wish.text), ("from", wish.from_request))
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidRequest(
            f"{' and '.join(given)} exclude each other", param=given[1], code="invalid_value"
        )
    for field, number in (("tokens", wish.tokens), ("ttl", wish.ttl)):
        if number is not None and number <= 0:
            raise InvalidRequest(f"{field} must be more than 0", param=field, code="invalid_value")
    return wish


def _pin(wish: PinBody) -> Pin:
    return Pin(
        request_id=new_id("pin"),
        name=wish.name,
        namespace=wish.salt or "",
        request=_request(wish),
        from_request=wish.from_request,
        tokens=wish.tokens,
        ttl_s=wish.ttl,
    )


def _request(wish: PinBody) -> GenerateRequest | None:
    if wish.text is not None:
        return GenerateRequest("", prompt=wish.text, namespace=wish.salt or "")
    if wish.messages is None:
        return None
    body: dict[str, Any] = {"model": "-", "messages": wish.messages, "cache_salt": wish.salt}
    for key in ("tools", "chat_template_kwargs"):
        if (value := getattr(wish, key)) is not None:
            body[key] = value
    return parse_chat(json_text(body).encode(), "").generate


def _model(router: Router, name: str | None) -> str:
    return name or router.default_model


def _done(answer: PinDone, model: str) -> dict[str, Any]:
    extra = {"cached_tokens": answer.cached_tokens, "replaced": answer.replaced}
    return _pin_object(answer.pin, model) | extra


def _pin_object(pin: PinInfo, model: str) -> dict[str, Any]:
    shown = asdict(pin)
    shown["salted"] = bool(shown.pop("namespace"))
    return {"model": model, **shown}


def _budgets(found: PinList, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "used_bytes": found.used_bytes,
        "budget_bytes": found.budget_bytes,
        "disk_bytes": found.disk_bytes,
        "disk_budget_bytes": found.disk_budget_bytes,
    }


def _not_found(name: str) -> NoReturn:
    raise NotFound(f"There is no pin {name!r}", param="name", code="pin_not_found")
