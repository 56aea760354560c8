"""What became of one request so far, folded from its events; shared by all dialects."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...engine.protocol import (
    Accepted,
    Delta,
    Failed,
    Finished,
    GenerateRequest,
    LogprobsDelta,
    ReasoningDelta,
    Rejected,
    RequestEvent,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from ..errors import (
    Cancelled,
    CapsuleOverBudget,
    ContextLengthExceeded,
    InvalidRequest,
    QueueFull,
    RequestError,
    Unavailable,
)
from ..records.request_state import RequestLife, RequestState
from ..workers.retry_after import retry_after


@dataclass(slots=True)
class Generation:
    """The events of one request as facts; each is None until its event has come.

    `tokens` counts those generated so far. `texts` collects the answer, with its reasoning and the arguments of its
    calls, where contents are logged. `logprobs` are those that nobody has taken yet.
    """

    life: RequestLife = field(default_factory=lambda: RequestLife(time.monotonic()))
    accepted: Accepted | None = None
    started: Started | None = None
    finished: Finished | None = None
    tokens: int = 0
    texts: list[str] | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def take(self, events: Iterable[RequestEvent]) -> list[Delta]:
        """Takes note of events and returns what they add to the answer.

        Raises InvalidRequest or another RequestError for a refusal or a failure, Unavailable for one after
        which the client should ask again, Cancelled when the worker was told to end the request.
        """
        deltas: list[Delta] = []
        for event in events:
            match event:
                case TextDelta() | ReasoningDelta() | ToolCallDelta():
                    self._reach(RequestState.DECODE)
                    self.tokens += event.tokens
                    deltas.append(event)
                case LogprobsDelta():
                    self.logprobs += event.tokens
                case Accepted():
                    self.accepted = event
                    self._reach(RequestState.QUEUED)
                case Started():
                    self.started = event
                    self._reach(RequestState.PREFILL)
                case Finished():
                    self._finish(event)
                case Rejected() | Failed():
                    raise to_error(event)
        if self.texts is not None:
            self.texts += map(_written, deltas)
        return deltas

    def take_logprobs(self) -> list[TokenLogprob]:
        """Those that came since the last call."""
        taken, self.logprobs = self.logprobs, []
        return taken

    def _finish(self, event: Finished) -> None:
        if event.finish_reason == "cancelled":
            assert event.cancel_reason is not None, "who cancelled it is known"
            raise Cancelled(event.cancel_reason)
        # An answer without text passes through DECODE in the moment of its end.
        self._reach(RequestState.DECODE)
        self.finished = event
        self.tokens = event.completion_tokens

    def _reach(self, state: RequestState) -> None:
        """Moves on, unless the request is there already."""
        if self.life.state is not state:
            self.life.move(state, time.monotonic())


def _written(delta: Delta) -> str:
    if isinstance(delta, ToolCallDelta):
        return f"{delta.name or ''}{delta.arguments}"
    return delta.text


def after(seconds: float, request: GenerateRequest) -> GenerateRequest:
    """The request with what is left of its deadline when it has waited for so long."""
    if request.timeout_s is None:
        return request
    return replace(request, timeout_s=max(request.timeout_s - seconds, 0.0))


def to_error(event: Rejected | Failed) -> RequestError:
    """The error that stands for a worker's refusal or failure."""
    if isinstance(event, Failed):
        return RequestError(event.message, code=event.code)
    if event.code == ContextLengthExceeded.code:
        numbers = event.prompt_tokens or 0, event.context_length or 0
        return ContextLengthExceeded(*numbers, event.param or "messages")
    if event.wanted_bytes is not None:
        return CapsuleOverBudget(event.message, event.wanted_bytes, event.free_bytes or 0, event.param)
    if event.status == QueueFull.status:
        return QueueFull(event.message, retry_after(event.retry_after_s or 0.0))
    if event.status >= 500:
        return Unavailable(
            event.message, code=event.code, retry_after=retry_after(event.retry_after_s or 0.0)
        )
    error = InvalidRequest(event.message, param=event.param, code=event.code)
    error.status = event.status
    return error
