"""`GET /openapi.json`: what the daemon serves, in the words of OpenAPI 3.1.

The description is made when somebody asks for it first. Until then it costs nothing, not even an import.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def openapi_route(routes: Sequence[Route]) -> Route:
    """The route that describes `routes` and itself."""

    @cache
    def description() -> bytes:
        import msgspec

        from .document import document

        return msgspec.json.encode(document([*routes, route]))

    async def show(_request: Request) -> Response:
        return Response(description(), media_type="application/json")

    route = Route("/openapi.json", show)
    return route
