"""The HTTP application: one list of routes and one onion of middleware.

    RequestIds          every response carries an id
      Measured          counts and times for /metrics
        HostGuard       421
          Starlette     errors of all kinds in OpenAI's shape
            OriginGuard 415
              routes

Errors become responses in Starlette's handlers, below; a bug is answered with 500 and raised on, for the log.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from .api.events import events_route
from .api.health import health_routes, json_response
from .api.pins import pin_routes
from .api.requests import find_record, request_routes
from .api.sessions import session_routes
from .errors import InvalidRequest, RequestError
from .http.hosts import HostGuard, OriginGuard, allowed_hosts
from .http.request_ids import RequestIds, request_id_of
from .openai.chat import CHAT
from .openai.completions import COMPLETIONS
from .openai.embeddings import Embeddings
from .openai.errors import error_object
from .openai.models import model_routes
from .openai.route import Dialect, GenerationRoute
from .openai.tokens import token_routes
from .openapi.route import openapi_route
from .records.metrics import ERROR_TYPE, Measured, metrics_route
from .service import Service


def build_app(service: Service) -> ASGIApp:
    """The whole application around `service`."""
    settings = service.settings

    def generating(dialect: Dialect) -> GenerationRoute:
        return GenerationRoute(
            dialect,
            service.router,
            service.ledger,
            settings.max_body,
            settings.heartbeat,
            settings.log_content,
            settings.namespace_keys,
        )

    routes = [
        Route("/v1/chat/completions", generating(CHAT), methods=["POST"]),
        Route("/v1/completions", generating(COMPLETIONS), methods=["POST"]),
        Route("/v1/embeddings", Embeddings(service.router, service.ledger, settings), methods=["POST"]),
        *model_routes(service.router, service.started_at),
        *token_routes(service.router, settings.max_body),
        *pin_routes(service.router, settings.max_body, partial(find_record, service)),
        *session_routes(service.router),
        *request_routes(service),
        *health_routes(service),
        events_route(service),
        metrics_route(service.metrics),
    ]
    app = Starlette(
        routes=[*routes, openapi_route(routes)],
        middleware=[Middleware(OriginGuard, refuse=error_response)],
        exception_handlers={
            RequestError: _on_request_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    return RequestIds(Measured(HostGuard(app, allowed_hosts(settings)), service.metrics))


def error_response(error: RequestError) -> Response:
    """An error before the first byte of an answer."""
    response = json_response(error_object(error), error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


async def _on_request_error(request: Request, error: Any) -> Response:
    request.scope[ERROR_TYPE] = error.code or error.type
    return error_response(error)


async def _on_http_exception(request: Request, error: Any) -> Response:
    is_method = error.status_code == 405
    text = "The method is not allowed" if is_method else "There is no such route"
    code = "method_not_allowed" if is_method else "unknown_route"
    failure = InvalidRequest(f"{text}: {request.method} {request.url.path}", code=code)
    failure.status = error.status_code
    response = error_response(failure)
    if is_method:
        response.headers["Allow"] = _allowed(request)
    return response


def _allowed(request: Request) -> str:
    """The methods of all routes of a path; Starlette would name those of the first."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in route.methods}))


async def _on_bug(request: Request, _error: Exception) -> Response:
    message = f"Internal error; the daemon's log has more (request id {request_id_of(request.scope)})"
    return error_response(RequestError(message, code="internal_error"))
