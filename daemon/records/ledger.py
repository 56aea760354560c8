"""The books of generation requests: each one received ends in exactly one terminal state.

    no error                                     DONE
    the client went away, or it was cancelled    CANCELLED
    an error before it was accepted              REJECTED   (but a failure of our own is an ERROR)
    an error afterwards                          ERROR

So the terminal states add up to the requests received, less those that still run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ...engine.protocol import CancelReason, WorkerStats
from ..errors import Cancelled, RequestError
from ..generation.generation import Generation
from ..http.caller import Caller
from ..snapshot import RequestCounts
from .request_state import TERMINAL, RequestState

_BUG = "internal_error"
_SHUTTING_DOWN = "shutting_down"


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""


class Facts(Protocol):
    """What a worker has told of itself."""

    stats: WorkerStats | None


class Worker(Protocol):
    """What the books ask of the worker that has a request."""

    @property
    def facts(self) -> Facts:
        """Its last words."""

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        """Takes a request back; nothing happens if it has ended."""


@dataclass(slots=True)
class Entry:
    """One running request. The handler fills in what it learns; `generation` collects the request's events.

    `id` is the id of the answer, which no other request has; `number` counts requests since the start. `model` is the
    name that was asked for, then that of the model which serves it; `device` is known only then. `status` is the HTTP
    status that was sent. `body` is kept only where contents are logged.
    """

    number: int
    id: str
    caller: Caller
    task: asyncio.Task[object]
    received_at: float = field(default_factory=time.time)
    model: str = ""
    device: str | None = None
    stream: bool = False
    session: str | None = None
    load_s: float | None = None
    status: int | None = None
    reason: str | None = None
    error: str | None = None
    body: bytes | None = None
    worker: Worker | None = None
    cancelled: CancelReason | None = None
    generation: Generation = field(default_factory=Generation)

    def cancel(self, reason: CancelReason) -> None:
        """Ends the request wherever it is. The first reason stays."""
        if self.cancelled is None:
            self.cancelled = reason
            if self.worker is not None:
                self.worker.cancel(self.id, reason)
            self.task.cancel()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Notes how long the block waits for the model, also when it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.load_s = time.monotonic() - began

    @contextmanager
    def expiring(self, seconds: float | None) -> Iterator[None]:
        """Cancels the request if the block takes longer than that; None gives it all the time."""
        if seconds is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(seconds, self.cancel, CancelReason.DEADLINE)
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def as_cancelled(self) -> Iterator[None]:
        """Makes of the interruption that `cancel` caused a Cancelled with its reason."""
        try:
            yield
        except asyncio.CancelledError:
            if self.cancelled is None or self.task.uncancel() > 0:
                raise
            raise Cancelled(self.cancelled) from None


@dataclass(slots=True)
class Ledger:
    """Counts since the start, and what runs now. `on_end` gets each entry once it has ended.

    Used in the event loop alone.
    """

    on_end: Callable[[Entry], None] = lambda _entry: None
    active: dict[str, Entry] = field(default_factory=dict)
    ended: dict[RequestState, int] = field(default_factory=lambda: dict.fromkeys(TERMINAL, 0))
    received: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    @contextmanager
    def entry(self, key: str, caller: Caller) -> Iterator[Entry]:
        """Books one request under a `key` of its own, for as long as the block runs; errors pass through.

        Raises Cancelled inside the current task when somebody cancels the entry.
        """
        task = asyncio.current_task()
        assert task is not None
        self.received += 1
        entry = self.active[key] = Entry(self.received, key, caller, task)
        self._idle.clear()
        terminal = RequestState.ERROR
        try:
            with entry.as_cancelled():
                yield entry
            terminal = RequestState.DONE
        except BaseException as error:
            terminal = _terminal(error, entry)
            raise
        finally:
            self._close(entry, terminal)

    def find(self, name: str) -> list[Entry]:
        """The running requests with this id, or with this request id, which clients may use twice."""
        if entry := self.active.get(name):
            return [entry]
        return [entry for entry in self.active.values() if entry.caller.request_id == name]

    async def until_idle(self, timeout: float) -> bool:
        """Waits until no request runs; False when `timeout` seconds were not enough."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def counts(self) -> RequestCounts:
        """The books at this moment. Queued requests are those that no engine has taken up."""
        queued = sum(entry.generation.started is None for entry in self.active.values())
        ended = {terminal.value: count for terminal, count in self.ended.items()}
        return RequestCounts(
            active=len(self.active),
            queued=queued,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            **ended,
        )

    def _close(self, entry: Entry, terminal: RequestState) -> None:
        entry.generation.life.move(terminal, time.monotonic())
        del self.active[entry.id]
        self.ended[terminal] += 1
        if finished := entry.generation.finished:
            self.prompt_tokens += finished.prompt_tokens
            self.cached_tokens += finished.cached_tokens
            self.completion_tokens += finished.completion_tokens
        if not self.active:
            self._idle.set()
        self.on_end(entry)


def _terminal(error: BaseException, entry: Entry) -> RequestState:
    """The state that `error` ends the request in; notes the reason, and the status if none was sent."""
    match error:
        case ClientGone():
            entry.reason = CancelReason.CLIENT.value
        case Cancelled():
            entry.reason, entry.status = error.reason.value, entry.status or error.status
        case asyncio.CancelledError():
            entry.reason = CancelReason.SHUTDOWN.value
        case RequestError():
            return _failed(error, entry)
        case _:
            entry.reason, entry.status = _BUG, entry.status or 500
            return RequestState.ERROR
    return RequestState.CANCELLED


def _failed(error: RequestError, entry: Entry) -> RequestState:
    entry.reason, entry.error = error.code or error.type, error.message
    entry.status = entry.status or error.status
    is_ours = error.status == RequestError.status
    is_new = entry.generation.life.state is RequestState.ENQUEUED
    if error.code == _SHUTTING_DOWN and not is_new:
        entry.reason = CancelReason.SHUTDOWN.value
        return RequestState.CANCELLED
    return RequestState.REJECTED if is_new and not is_ours else RequestState.ERROR
