"""The HTTP application: one list of routes and one onion of middleware.

    RequestIds        every response carries an id
      HostGuard       421
        Starlette     errors of all kinds in OpenAI's shape
          OriginGuard 415
            routes

Errors become responses in Starlette's handlers, below; a bug is answered with 500 and raised on, for the log.
"""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .errors import InvalidRequest, RequestError
from .health import health_routes, json_response
from .hosts import HostGuard, OriginGuard, allowed_hosts
from .models_api import model_routes
from .openai import ChatCompletions, error_object
from .pins_api import pin_routes
from .request_ids import RequestIds, request_id_of
from .service import Service


def build_app(service: Service) -> ASGIApp:
    """The whole application around `service`."""
    settings = service.settings
    chat = ChatCompletions(service.router, service.ledger, settings.max_body, settings.heartbeat)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            *model_routes(service.router, service.started_at),
            *pin_routes(service.router, settings.max_body),
            *health_routes(service),
        ],
        middleware=[Middleware(OriginGuard, refuse=error_response)],
        exception_handlers={
            RequestError: _on_request_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    return RequestIds(HostGuard(app, allowed_hosts(settings)))


def error_response(error: RequestError) -> Response:
    """An error before the first byte of an answer."""
    response = json_response(error_object(error), error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


async def _on_request_error(_request: Request, error: Any) -> Response:
    return error_response(error)


async def _on_http_exception(request: Request, error: Any) -> Response:
    is_method = error.status_code == 405
    text = "The method is not allowed" if is_method else "There is no such route"
    code = "method_not_allowed" if is_method else "unknown_route"
    failure = InvalidRequest(f"{text}: {request.method} {request.url.path}", code=code)
    failure.status = error.status_code
    response = error_response(failure)
    response.headers.update(error.headers or {})
    return response


async def _on_bug(request: Request, _error: Exception) -> Response:
    message = f"Internal error; the daemon's log has more (request id {request_id_of(request.scope)})"
    return error_response(RequestError(message, code="internal_error"))
