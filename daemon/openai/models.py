"""`/v1/models`: the models that can be served now without a download."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..api.health import json_response
from ..errors import StoreError, Unavailable
from ..store.registry import StoredModel, capabilities
from ..workers.router import REFERENCE, Router, canonical_name, find_in_store

_GENERATES = ("completion",)


def model_routes(router: Router, started_at: float) -> list[Route]:
    """The list, and one model by name; names may hold `:` and `/`. `started_at` dates the built-in model."""

    async def listing(_request: Request) -> Response:
        if router.settings.mock:
            context = loaded_context(router, REFERENCE)
            models = [_model(REFERENCE, started_at, context, _GENERATES)]
        else:
            models = [_stored(router, model) for model in await asyncio.to_thread(_all, router)]
        return json_response({"object": "list", "data": models})

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        if router.settings.mock:
            target = await router.find(name)
            context = loaded_context(router, target.name)
            return json_response(_model(target.name, started_at, context, _GENERATES))
        wanted = canonical_name(name, router.settings.aliases)
        return json_response(_stored(router, await asyncio.to_thread(find_in_store, router.store, wanted)))

    return [Route("/v1/models", listing), Route("/v1/models/{name:path}", one)]


def loaded_context(router: Router, name: str) -> int | None:
    """The context length of a model that is or was loaded, else None."""
    infos = (one.facts.model for one in router.supervisors() if one.load.name == name)
    return next((info.context_length for info in infos if info is not None), None)


def _all(router: Router) -> list[StoredModel]:
    try:
        return router.store.list()
    except StoreError as error:
        raise Unavailable("The model store can't be read; see `agentserve list`") from error


def _stored(router: Router, model: StoredModel) -> dict[str, Any]:
    context = loaded_context(router, model.name)
    trained = model.info.get("context_length")
    if context is None and isinstance(trained, int):
        context = min(trained, router.settings.max_context or trained)
    card = _model(model.name, model.created, context, capabilities(model))
    dimensions = model.info.get("dimensions")
    return card if dimensions is None else card | {"dimensions": dimensions}


def _model(name: str, created: float, context: int | None, can_do: Sequence[str]) -> dict[str, Any]:
    card: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": int(created),
        "owned_by": "agentserve",
        "capabilities": can_do,
    }
    return card if context is None else card | {"context_length": context, "max_model_len": context}
