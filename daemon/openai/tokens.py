"""`/v1/tokenize`, `/v1/detokenize` and `/v1/chat/render`: what a model reads, without making it write.

The first two speak vLLM's dialect. `render` takes the body of a chat request and tells the exact prompt: with that
at hand, two requests can be compared where a cached prefix was expected and not found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...engine.protocol import (
    Detokenize,
    Detokenized,
    GenerateRequest,
    ModelInfo,
    TokenCommand,
    Tokenize,
    Tokenized,
)
from ..api.health import json_response
from ..api.questions import Answer, ask, new_id
from ..errors import BodyTooLarge
from ..http.json_body import decode_body
from ..http.streams import cancelled_on_disconnect, read_body
from ..records.ledger import ClientGone
from ..workers.router import Purpose, Router
from .chat_schema import parse_chat

MOST_CHARACTERS = 1 << 20
"""Longest text of one tokenize request."""
MOST_TOKENS = 1 << 18
"""Most tokens of one detokenize request."""


class TokenizeBody(msgspec.Struct):
    """A text; None for `model` is the default model."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct):
    """Tokens; control tokens are spelled out unless `skip_special_tokens`."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class RenderBody(msgspec.Struct):
    """What `render` adds to the body of a chat request."""

    return_token_strs: bool | None = None


def token_routes(router: Router, max_body: int) -> list[Route]:
    """All three. A model that is not loaded is loaded."""

    async def tokenize(body: bytes) -> dict[str, Any]:
        wish = decode_body(body, TokenizeBody)
        _check_size("prompt", len(wish.prompt), MOST_CHARACTERS, "characters")
        request = GenerateRequest("", prompt=wish.prompt)
        question = Tokenize(new_id("tok"), request, wish.add_special_tokens is not False)
        answer, info = await _answer(router, wish.model, question, "any")
        assert isinstance(answer, Tokenized)
        return _tokens_object(answer, info, bool(wish.return_token_strs))

    async def detokenize(body: bytes) -> dict[str, Any]:
        wish = decode_body(body, DetokenizeBody)
        _check_size("tokens", len(wish.tokens), MOST_TOKENS, "tokens")
        question = Detokenize(new_id("tok"), tuple(wish.tokens), bool(wish.skip_special_tokens))
        answer, info = await _answer(router, wish.model, question)
        assert isinstance(answer, Detokenized)
        return {"model": info.name, "prompt": answer.text}

    async def render(body: bytes) -> dict[str, Any]:
        call = parse_chat(body, new_id("tok"), router.settings.namespace_keys)
        shows_pieces = decode_body(body, RenderBody).return_token_strs
        answer, info = await _answer(router, call.model, Tokenize(call.generate.request_id, call.generate))
        assert isinstance(answer, Tokenized)
        places = {
            "stable_tokens": answer.stable_tokens,
            "turn_start": answer.turn_start,
            "canonical_tokens": len(answer.tokens) if answer.canonical is None else answer.canonical,
        }
        return {"prompt": answer.text} | _tokens_object(answer, info, bool(shows_pieces)) | places

    def route(path: str, reply: Callable[[bytes], Awaitable[dict[str, Any]]]) -> Route:
        async def handler(request: Request) -> Response:
            try:
                body = await read_body(request.scope, request.receive, max_body)
                async with cancelled_on_disconnect(request.receive):
                    return json_response(await reply(body))
            except ClientGone:
                # Nobody is there to read it.
                return Response(status_code=204)

        return Route(path, handler, methods=["POST"])

    return [
        route("/v1/tokenize", tokenize),
        route("/v1/detokenize", detokenize),
        route("/v1/chat/render", render),
    ]


async def _answer(
    router: Router, model: str | None, question: TokenCommand, purpose: Purpose = "generation"
) -> tuple[Answer, ModelInfo]:
    async with router.hold(model or router.default_model, purpose) as worker:
        info = await router.ready(worker)
        return await ask(worker, question), info


def _tokens_object(answer: Tokenized, info: ModelInfo, shows_pieces: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": info.name,
        "count": len(answer.tokens),
        "max_model_len": info.context_length,
        "tokens": answer.tokens,
    }
    return found | {"token_strs": answer.pieces} if shows_pieces else found


def _check_size(param: str, size: int, most: int, unit: str) -> None:
    if size > most:
        message = f"{param}: at most {most:,} {unit} in one request, got {size:,}"
        raise BodyTooLarge(message, param=param)
