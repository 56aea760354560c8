"""A route of OpenAI's dialect that generates: a request in, a stream of frames or one object out.

Silence in a stream is filled with frames that say nothing new. Until the request is accepted an error is an HTTP
status. Afterwards one that a retry can't cure is an error frame, and one that it can is only a broken connection,
because clients retry those and give up on error frames. Neither ends the response, so no client takes it for whole.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from ...engine.protocol import CancelReason
from ..errors import Cancelled, RequestError
from ..generation.choices import Choices, fan_out
from ..generation.extensions import SALTS
from ..generation.generation import after
from ..http.caller import caller_of
from ..http.connections import why_gone
from ..http.streams import EventStream, read_body, send_json, watched
from ..records.ledger import ClientGone, Entry, Ledger
from ..workers.channel import EventChannel
from ..workers.router import Router
from .errors import stream_error
from .generation_schema import Call
from .reply import Answer, Reply, frame

_UNREACHABLE = (CancelReason.CLIENT, CancelReason.SLOW_READER)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What tells routes apart: what their ids begin with, how a body is read, and how an answer is put."""

    prefix: str
    parse: Callable[[bytes, str, Sequence[str]], Call]
    reply: Callable[[Answer], Reply]


@dataclass(frozen=True, slots=True)
class GenerationRoute:
    """ASGI application of a route."""

    dialect: Dialect
    router: Router
    ledger: Ledger
    max_body: int
    heartbeat: float
    log_content: bool = False
    namespace_keys: Sequence[str] = SALTS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(send)
        call_id = f"{self.dialect.prefix}-{uuid.uuid4().hex}"
        try:
            with self.ledger.entry(call_id, caller_of(scope)) as entry:
                body = await read_body(scope, receive, self.max_body)
                self._keep_content(entry, body)
                call = self.dialect.parse(body, call_id, self.namespace_keys)
                # The worker keeps the deadline too, at its next step; one that loads, hangs or was replaced can't.
                with entry.expiring(call.generate.timeout_s):
                    async with watched(receive, lambda: entry.cancel(why_gone(scope))):
                        await self._answer(call, entry, stream, send)
        except ClientGone:
            return
        except RequestError as error:
            if isinstance(error, Cancelled) and error.reason in _UNREACHABLE:
                return
            if not stream.started:
                raise
            if error.retry_after is None and not stream.ended:
                await stream.write(frame(stream_error(error)))

    def _keep_content(self, entry: Entry, body: bytes) -> None:
        if self.log_content:
            entry.body, entry.generation.texts = body, []

    async def _answer(self, call: Call, entry: Entry, stream: EventStream, send: Send) -> None:
        entry.model, entry.stream, entry.session = call.model, call.stream, call.generate.session_id
        async with self.router.hold(call.model) as worker:
            entry.model = worker.load.name
            with entry.loading():
                info = await self.router.ready(worker)
            entry.device = info.device
            choices = _choices(call, entry)
            reply = self.dialect.reply(Answer(entry.model, info, int(time.time()), choices))
            with choices.open(worker) as channel:
                entry.worker = worker
                if call.stream:
                    await self._stream(reply, channel, stream, entry, call)
                else:
                    pieces = await choices.until_finished(channel)
                    entry.status = 200
                    await send_json(send, 200, reply.whole(pieces), reply.headers())

    async def _stream(
        self, reply: Reply, channel: EventChannel, stream: EventStream, entry: Entry, call: Call
    ) -> None:
        choices = reply.answer.choices
        begun = await choices.until_accepted(channel)
        entry.status = 200
        await stream.start(reply.headers())
        frames = reply.first_frames() + reply.frames(begun)
        while not choices.are_finished:
            await stream.write(frames)
            events = await channel.receive(self.heartbeat)
            if events:
                frames = reply.frames(choices.take(events))
            else:
                frames = reply.life_sign(entry if call.progress else None)
        await stream.end(frames + reply.last_frames(call.include_usage))


def _choices(call: Call, entry: Entry) -> Choices:
    """The choices of a call, with what is left of their deadline after the model was loaded."""
    requests = fan_out((call.generate, *call.further), call.n)
    left = tuple(after(entry.load_s or 0.0, request) for request in requests)
    return Choices(entry.generation, left, call.n)
