"""The requests that one worker has, and what becomes of them when it dies.

A request that the worker had not started goes to the next worker, once, and its client notices nothing but the wait.
One that had started may be why the worker died, and its client may have read a part of the answer: it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ...engine.protocol import (
    Accepted,
    CancelReason,
    Content,
    Embed,
    Generate,
    PinCommand,
    RequestEvent,
    SessionCommand,
    Started,
    TokenCommand,
)
from ..errors import Cancelled
from .channel import EventChannel

Question = Generate | Embed | PinCommand | SessionCommand | TokenCommand
# After any other event nothing more is heard of a request.
_MORE_FOLLOWS = Accepted | Started | Content


@dataclass(slots=True)
class _Open:
    """`channel` is None when nobody listens any more; `workers` counts those that have been asked."""

    question: Question
    channel: EventChannel | None
    workers: int = 0
    is_accepted: bool = False
    is_started: bool = False

    @property
    def can_move(self) -> bool:
        """Whether the next worker may have it."""
        is_fresh = isinstance(self.question, Generate | Embed) and not self.is_started
        return is_fresh and self.workers == 1 and self.channel is not None


@dataclass(slots=True)
class OpenRequests:
    """By request id, in the order of their arrival. `idle` is set while there are none."""

    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _items: dict[str, _Open] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle.set()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, request_id: str, question: Question, channel: EventChannel | None = None) -> EventChannel:
        """Books a question that is about to be sent. Several may share one channel."""
        channel = channel or EventChannel()
        self._items[request_id] = _Open(question, channel, workers=1)
        self.idle.clear()
        return channel

    def leave(self, request_id: str) -> bool:
        """Nobody listens any more; False when nobody did, or there is no such request."""
        item = self._items.get(request_id)
        if item is None or item.channel is None:
            return False
        item.channel = None
        return True

    def deliver(self, event: RequestEvent) -> bool:
        """Hands an event to its listener, if there is one. One that is too far behind is given up: False.

        A second worker accepts what was accepted before; that is told once.
        """
        item = self._items.get(event.request_id)
        if item is None:
            return True
        is_repeated = isinstance(event, Accepted) and item.is_accepted
        item.is_accepted |= isinstance(event, Accepted)
        item.is_started |= isinstance(event, Started)
        channel = None if is_repeated else item.channel
        if not isinstance(event, _MORE_FOLLOWS):
            self._drop(event.request_id)
        if channel is None or channel.put(event):
            return True
        channel.fail(Cancelled(CancelReason.SLOW_READER))
        return False

    def end(self, request_id: str, error: Exception) -> None:
        """Ends one request with `error` for its listener, if there is one."""
        item = self._items.get(request_id)
        if item is not None:
            self._drop(request_id)
            if item.channel is not None:
                item.channel.fail(error)

    def move(self) -> list[Question]:
        """What the next worker is to be asked; what nobody waits for any more is dropped."""
        for request_id, item in tuple(self._items.items()):
            item.workers += 1
            if item.channel is None:
                self._drop(request_id)
        return [item.question for item in self._items.values()]

    def fail(self, error: Callable[[], Exception], *, but_movable: bool = False) -> None:
        """Ends all channels with a fresh error each; with `but_movable` only those that can't go to another worker."""
        for request_id, item in tuple(self._items.items()):
            if not (but_movable and item.can_move):
                self.end(request_id, error())

    def _drop(self, request_id: str) -> None:
        del self._items[request_id]
        if not self._items:
            self.idle.set()
