"""OpenAI's chat completions: a request in, a stream of frames or one object out, errors in OpenAI's shape.

A stream is the role frame, content frames, the frame with the finish reason and the `agentserve` block, the
usage frame if asked for, and `[DONE]`. Until the request is accepted an error is an HTTP status. Afterwards
one that a retry can't cure is an error frame, and one that it can is only a broken connection, because
clients retry those and give up on error frames. Neither ends the response, so no client takes it for whole.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from ..engine.protocol import Finished, ModelInfo
from .channel import EventChannel
from .errors import ContextLengthExceeded, RequestError, Unavailable
from .generation import Generation
from .ledger import ClientGone, Entry, Ledger
from .openai_schema import ChatCall, parse_chat
from .request_ids import request_id_of
from .router import Router
from .streams import EventStream, cancelled_on_disconnect, read_body, send_json

_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    """ASGI application of `POST /v1/chat/completions`."""

    router: Router
    ledger: Ledger
    max_body: int
    heartbeat: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send)
        call_id = f"chatcmpl-{uuid.uuid4().hex}"
        try:
            with self.ledger.entry(request_id_of(scope), call_id) as entry:
                body = await read_body(scope, receive, self.max_body)
                call = parse_chat(body, call_id)
                async with cancelled_on_disconnect(receive):
                    await self._answer(call, entry, stream, send)
        except ClientGone:
            return
        except RequestError as error:
            if not stream.started:
                raise
            if not isinstance(error, Unavailable):
                await stream.write(_frame(stream_error(error)))

    async def _answer(self, call: ChatCall, entry: Entry, stream: EventStream, send: Send) -> None:
        entry.model = call.model
        async with self.router.hold(call.model) as worker:
            entry.model = worker.load.name
            info = await self.router.ready(worker)
            reply = Reply(call.generate.request_id, entry.model, info, int(time.time()), entry.generation)
            with worker.open(call.generate) as channel:
                if call.stream:
                    await self._stream(reply, channel, stream, call.include_usage)
                else:
                    text = await entry.generation.until_finished(channel)
                    await send_json(send, 200, reply.completion(text), reply.headers())

    async def _stream(
        self, reply: Reply, channel: EventChannel, stream: EventStream, include_usage: bool
    ) -> None:
        generation = reply.generation
        text = await generation.until_accepted(channel)
        await stream.start(reply.headers())
        frames = reply.role_frame() + reply.text_frame(text)
        while generation.finished is None:
            await stream.write(frames)
            events = await channel.receive(self.heartbeat)
            frames = reply.text_frame(generation.take(events)) if events else reply.chunk({})
        await stream.end(frames + reply.last_frames(include_usage))


@dataclass(slots=True)
class Reply:
    """Builds the wire objects of one answer. `created` is in unix seconds."""

    call_id: str
    model: str
    info: ModelInfo
    created: int
    generation: Generation
    _open: bytes = b""

    def __post_init__(self) -> None:
        # All that precedes the text of a delta, encoded once.
        self._open = self.chunk({"content": ""}).removesuffix(b'""}}]}\n\n')

    def headers(self) -> list[tuple[str, str]]:
        """Headers about the execution, as far as it is known by now."""
        device = self.info.device
        pairs = [
            ("X-AgentServe-Device", device),
            ("X-AgentServe-Execution-Device", device),
            ("X-AgentServe-Routed-Device", device),
            ("X-AgentServe-Route-Reason", "single_engine_runtime"),
        ]
        if accepted := self.generation.accepted:
            pairs.append(("X-AgentServe-Token-Count", str(accepted.prompt_tokens)))
            pairs.append(("X-AgentServe-Queue-Position", str(accepted.queue_position)))
        if started := self.generation.started:
            pairs.append(("X-AgentServe-Prefix-Action", started.prefix_action))
            pairs.append(("X-AgentServe-Cached-Tokens", str(started.cached_tokens)))
        return pairs

    def completion(self, text: str) -> bytes:
        """The whole answer as one object."""
        finished = self._finished()
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finished.finish_reason}
        body = self._envelope("chat.completion", [choice])
        body |= {"usage": usage(finished), "agentserve": record(self.generation)}
        return msgspec.json.encode(body)

    def role_frame(self) -> bytes:
        """The first frame."""
        return self.chunk({"role": "assistant", "content": ""})

    def text_frame(self, text: str) -> bytes:
        """A frame with a piece of the answer; nothing for an empty piece."""
        return b"%b%b}}]}\n\n" % (self._open, msgspec.json.encode(text)) if text else b""

    def chunk(self, delta: dict[str, str], **choice: str) -> bytes:
        """A frame of one choice; an empty delta is the protocol's no-op."""
        choices = [{"index": 0, "delta": delta, **choice}]
        return _frame(self._envelope("chat.completion.chunk", choices))

    def last_frames(self, include_usage: bool) -> bytes:
        """All frames that follow the last text."""
        finished = self._finished()
        choices = [{"index": 0, "delta": {}, "finish_reason": finished.finish_reason}]
        last = self._envelope("chat.completion.chunk", choices) | {"agentserve": record(self.generation)}
        tail = self._envelope("chat.completion.chunk", []) | {"usage": usage(finished)}
        return _frame(last) + (_frame(tail) if include_usage else b"") + _DONE

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.call_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.info.fingerprint,
            "choices": choices,
        }

    def _finished(self) -> Finished:
        assert self.generation.finished is not None
        return self.generation.finished


def usage(finished: Finished) -> dict[str, Any]:
    """Token counts in OpenAI's shape; prompt_tokens counts cached ones too."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def record(generation: Generation) -> dict[str, Any]:
    """The `agentserve` block: what was reused and where the time went, in milliseconds."""
    finished, started, accepted = generation.finished, generation.started, generation.accepted
    assert finished is not None
    timings = finished.timings
    block: dict[str, Any] = {
        "cached_tokens": finished.cached_tokens,
        "new_prefill_tokens": finished.prompt_tokens - finished.cached_tokens,
        "queued_ms": _milliseconds(timings.queued_s),
        "tokenize_ms": _milliseconds(timings.tokenize_s),
        "prefill_ms": _milliseconds(timings.prefill_s),
        "first_delta_ms": _milliseconds(timings.first_token_s),
        "decode_ms": _milliseconds(timings.decode_s),
    }
    # The first token comes out of the prefill.
    if timings.decode_s > 0 and finished.completion_tokens > 1:
        block["decode_tok_per_s"] = round((finished.completion_tokens - 1) / timings.decode_s, 2)
    if started is not None:
        known = {
            "prefix_action": started.prefix_action,
            "session_id": started.session_id,
            "cache_miss_reason": started.cache_miss_reason,
            "first_difference": started.first_difference,
        }
        block |= {name: value for name, value in known.items() if value is not None}
    if accepted is not None and accepted.clipped:
        block["max_output_tokens"] = accepted.max_new_tokens
    if finished.stop_string is not None:
        block["stop_string"] = finished.stop_string
    return block


def error_object(error: RequestError) -> dict[str, Any]:
    """OpenAI's error envelope; a context overflow carries both of its numbers."""
    body: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if isinstance(error, ContextLengthExceeded):
        body |= {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context_length}
    return {"error": body}


def stream_error(error: RequestError) -> dict[str, Any]:
    """The error frame of a stream that had begun."""
    body = {"message": error.message, "type": "server_error", "param": None, "code": "streaming_error"}
    return {"error": body}


def _frame(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(value)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
