"""What became of one request so far, folded from its events; shared by all dialects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..engine.protocol import Accepted, Failed, Finished, Rejected, RequestEvent, Started, TextDelta
from .channel import EventChannel
from .errors import ContextLengthExceeded, InvalidRequest, QueueFull, RequestError, Unavailable


@dataclass(slots=True)
class Generation:
    """The events of one request as facts; each is None until its event has come."""

    accepted: Accepted | None = None
    started: Started | None = None
    finished: Finished | None = None

    def take(self, events: Iterable[RequestEvent]) -> str:
        """Takes note of events and returns the text that they add to the answer.

        Raises InvalidRequest or another RequestError for a refusal or a failure, Unavailable for one after
        which the client should ask again.
        """
        parts: list[str] = []
        for event in events:
            match event:
                case TextDelta():
                    parts.append(event.text)
                case Accepted():
                    self.accepted = event
                case Started():
                    self.started = event
                case Finished():
                    self._finish(event)
                case Rejected() | Failed():
                    raise to_error(event)
        return "".join(parts)

    async def until_accepted(self, channel: EventChannel) -> str:
        """Reads until the request is accepted and returns text that came along. Raises as `take` does."""
        text = ""
        while self.accepted is None:
            text += self.take(await channel.receive())
        return text

    async def until_finished(self, channel: EventChannel) -> str:
        """Reads to the end and returns all the text from here on. Raises as `take` does."""
        parts: list[str] = []
        while self.finished is None:
            parts.append(self.take(await channel.receive()))
        return "".join(parts)

    def _finish(self, event: Finished) -> None:
        if event.finish_reason == "cancelled":
            reason = event.cancel_reason.value if event.cancel_reason else "cancelled"
            raise Unavailable(f"The request was cancelled ({reason})", code=reason, retry_after=1)
        self.finished = event


def to_error(event: Rejected | Failed) -> RequestError:
    """The error that stands for a worker's refusal or failure."""
    if isinstance(event, Failed):
        return RequestError(event.message, code=event.code)
    if event.code == ContextLengthExceeded.code:
        return ContextLengthExceeded(event.prompt_tokens or 0, event.context_length or 0)
    if event.status == QueueFull.status:
        return QueueFull(event.message, retry_after=1)
    if event.status >= 500:
        return Unavailable(event.message, code=event.code, retry_after=1)
    error = InvalidRequest(event.message, param=event.param, code=event.code)
    error.status = event.status
    return error
