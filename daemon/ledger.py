"""The books of generation requests: each one received ends in exactly one terminal state.

    no error                              done
    the client went away                  cancelled
    an error before it was accepted       rejected   (but a failure of our own is an error)
    an error afterwards                   error

So the terminal states add up to the requests received, less those that still run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from .errors import RequestError
from .generation import Generation
from .snapshot import RequestCounts

_LOG = logging.getLogger("agentserve.requests")


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""


class Terminal(Enum):
    """How a request ended; the value is its name in counts and in the log."""

    DONE = "done"
    CANCELLED = "cancelled"
    ERROR = "error"
    REJECTED = "rejected"


@dataclass(slots=True)
class Entry:
    """One running request. The handler fills in `model`; `generation` collects its events."""

    request_id: str
    model: str = ""
    generation: Generation = field(default_factory=Generation)
    received_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Ledger:
    """Counts since the start. Used in the event loop alone."""

    active: dict[str, Entry] = field(default_factory=dict)
    ended: dict[Terminal, int] = field(default_factory=lambda: dict.fromkeys(Terminal, 0))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    @contextmanager
    def entry(self, request_id: str, key: str) -> Iterator[Entry]:
        """Books one request under a `key` of its own, for as long as the block runs; errors pass through."""
        entry = self.active[key] = Entry(request_id)
        self._idle.clear()
        terminal = Terminal.ERROR
        try:
            yield entry
            terminal = Terminal.DONE
        except BaseException as error:
            terminal = _terminal(error, entry)
            raise
        finally:
            del self.active[key]
            self._close(entry, terminal)

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

    def _close(self, entry: Entry, terminal: Terminal) -> None:
        self.ended[terminal] += 1
        if finished := entry.generation.finished:
            self.prompt_tokens += finished.prompt_tokens
            self.cached_tokens += finished.cached_tokens
            self.completion_tokens += finished.completion_tokens
        if not self.active:
            self._idle.set()
        _LOG.info("%s %s: %s", entry.request_id, terminal.value, _describe(entry))


def _terminal(error: BaseException, entry: Entry) -> Terminal:
    if isinstance(error, ClientGone | asyncio.CancelledError):
        return Terminal.CANCELLED
    is_refusal = isinstance(error, RequestError) and error.status != RequestError.status
    return Terminal.REJECTED if is_refusal and entry.generation.accepted is None else Terminal.ERROR


def _describe(entry: Entry) -> str:
    generation = entry.generation
    parts = [entry.model or "no model", f"{time.monotonic() - entry.received_at:.3f} s"]
    if generation.started:
        parts.append(f"{generation.started.prefix_action} {generation.started.cached_tokens} cached")
    if done := generation.finished:
        times = done.timings
        parts.append(f"{done.prompt_tokens} in, {done.completion_tokens} out, {done.finish_reason}")
        parts.append(f"queue {times.queued_s:.3f} s")
        parts.append(f"prefill {times.prefill_s:.3f} s")
        parts.append(f"decode {times.decode_s:.3f} s")
    return ", ".join(parts)
