"""The states of a generation request and every allowed move between them.

    ENQUEUED ──▶ QUEUED ──▶ PREFILL ──▶ DECODE ──▶ DONE
       │            │          │           │
       ├────────────┴──────────┴───────────┴─────▶ CANCELLED, ERROR
       └──▶ REJECTED

ENQUEUED is a request that was received: its body is read, its model loaded, its prompt tokenised. QUEUED is
one that the worker has accepted. This file knows no requests and reads no clock. A move that is not in the table
raises and changes nothing.
"""

from __future__ import annotations

from enum import Enum

from ..workers.lifecycle import IllegalMove


class RequestState(Enum):
    """Where a request is; the value is its name in records, counts and metrics."""

    ENQUEUED = "enqueued"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"
    CANCELLED = "cancelled"
    ERROR = "error"
    REJECTED = "rejected"


_BROKEN = frozenset({RequestState.CANCELLED, RequestState.ERROR})

MOVES: dict[RequestState, frozenset[RequestState]] = {
    RequestState.ENQUEUED: _BROKEN | {RequestState.QUEUED, RequestState.REJECTED},
    RequestState.QUEUED: _BROKEN | {RequestState.PREFILL},
    RequestState.PREFILL: _BROKEN | {RequestState.DECODE},
    RequestState.DECODE: _BROKEN | {RequestState.DONE},
}
TERMINAL = frozenset(RequestState) - frozenset(MOVES)


class RequestLife:
    """The way of one request: its state, and when it came into each. Times are on a monotonic clock."""

    def __init__(self, now: float) -> None:
        self.state = RequestState.ENQUEUED
        self.stamps = {RequestState.ENQUEUED: now}

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    def move(self, to: RequestState, now: float) -> None:
        """Goes on to the state `to` at the time `now`. Raises IllegalMove when the table has no such move."""
        if to not in MOVES.get(self.state, ()):
            raise IllegalMove(f"{to.name} while {self.state.name}")
        self.state = to
        self.stamps[to] = now

    def between(self, first: RequestState, then: RequestState) -> float | None:
        """Seconds from one state to a later one; None when either was not reached."""
        if first not in self.stamps or then not in self.stamps:
            return None
        return self.stamps[then] - self.stamps[first]

    @property
    def ended_at(self) -> float | None:
        return self.stamps[self.state] if self.ended else None
