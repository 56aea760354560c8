"""`POST /v1/embeddings`: texts in, one vector for each out, as floats or as base64 of little-endian float32.

A request is booked like any other: its way through QUEUED, PREFILL and DONE, its record and its metrics are those of
a generation request that has no text.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from ...engine.protocol import CancelReason, Embed, Embedded, ModelInfo
from ..config import Settings
from ..errors import Cancelled, InvalidRequest
from ..generation.generation import Generation
from ..http.caller import caller_of
from ..http.connections import why_gone
from ..http.streams import Headers, read_body, send_json, watched
from ..records.ledger import ClientGone, Entry, Ledger
from ..workers.channel import EventChannel
from ..workers.router import Router, check_purpose
from .embeddings_schema import EmbeddingsCall, Format, check_dimensions, parse_embeddings

_UNREACHABLE = (CancelReason.CLIENT, CancelReason.SLOW_READER)
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Embeddings:
    """ASGI application of the route."""

    router: Router
    ledger: Ledger
    settings: Settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self.ledger.entry(f"embd-{uuid.uuid4().hex}", caller_of(scope)) as entry:
                body = await read_body(scope, receive, self.settings.max_body)
                if self.settings.log_content:
                    entry.body = body
                call = parse_embeddings(body)
                check_device(scope, self.settings.device)
                async with watched(receive, lambda: entry.cancel(why_gone(scope))):
                    await self._answer(call, entry, send)
        except ClientGone:
            return
        except Cancelled as error:
            if error.reason in _UNREACHABLE:
                return
            if error.reason is CancelReason.DEADLINE:
                error.code = "inference_timeout"
            raise

    async def _answer(self, call: EmbeddingsCall, entry: Entry, send: Send) -> None:
        entry.model = call.model or self.settings.embedding_model
        target = await self.router.resolve(entry.model, "embedding")
        check_purpose(target, "embedding")
        check_dimensions(call.dimensions, target.name, target.dimensions)
        async with self.router.hold(target.name, "embedding") as worker:
            entry.model = worker.load.name
            with entry.loading():
                info = await self.router.ready(worker)
            entry.device = info.device
            question = Embed(entry.id, call.inputs, call.truncate)
            with entry.expiring(self.settings.embed_timeout), worker.ask(question) as channel:
                entry.worker = worker
                embedded = await _until_finished(channel, entry.generation)
        entry.status = 200
        body = _body(embedded, call.format, entry)
        await send_json(send, 200, msgspec.json.encode(body), _headers(info, entry))


def check_device(scope: Scope, served: str) -> None:
    """Raises InvalidRequest when the request wants another device than the one that there is."""
    wanted = dict(scope["headers"]).get(b"x-agentserve-device", b"").decode("latin-1").strip()
    if wanted and wanted.upper() != served:
        message = f"X-AgentServe-Device: embeddings run on {served} here, not on {wanted!r}"
        raise InvalidRequest(message, param="X-AgentServe-Device", code="invalid_embedding_device")


async def _until_finished(channel: EventChannel, generation: Generation) -> Embedded:
    embedded: Embedded | None = None
    while generation.finished is None:
        events = await channel.receive()
        generation.take(events)
        embedded = next((event for event in events if isinstance(event, Embedded)), embedded)
    assert embedded is not None
    return embedded


def _body(embedded: Embedded, form: Format, entry: Entry) -> dict[str, Any]:
    finished = entry.generation.finished
    assert finished is not None
    tokens = finished.prompt_tokens
    return {
        "object": "list",
        "data": [
            # msgspec writes bytes as base64.
            {"object": "embedding", "index": index, "embedding": row if form == "base64" else _floats(row)}
            for index, row in enumerate(_rows(embedded))
        ],
        "model": entry.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "agentserve": {"cached_tokens": finished.cached_tokens},
    }


def _rows(embedded: Embedded) -> Iterator[bytes]:
    size = embedded.dimensions * _FLOAT_BYTES
    return (embedded.data[at : at + size] for at in range(0, len(embedded.data), size))


def _floats(row: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(row) // _FLOAT_BYTES}f", row)


def _headers(info: ModelInfo, entry: Entry) -> Headers:
    accepted = entry.generation.accepted
    tokens = accepted.prompt_tokens if accepted else 0
    return (("X-AgentServe-Device", info.device), ("X-AgentServe-Token-Count", str(tokens)))
