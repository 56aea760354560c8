"""The states of a worker process and every allowed move between them.

Two rules: all that may change a worker's state is in `MOVES`, and this file knows neither processes nor
time. A move that is not in the table raises and changes nothing.

              START             READY
    STOPPED ─────────▶ STARTING ─────────▶ READY
       ▲                │  │ STOP            │ │ STOP
       │ EXITED         │  └──▶ STOPPING ◀───┼─┘
       └────────────────┼────────── │        │
                 EXITED ▼                    ▼ EXITED
                      FAILED ◀───────────────┘      FAILED ── START ──▶ STARTING
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a worker process is in its life; the value is what `status` shows."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class Happened(Enum):
    """What can happen to a worker process."""

    START = "start"
    READY = "ready"
    STOP = "stop"
    EXITED = "exited"


class IllegalMove(Exception):
    """A bug of the caller: this can't happen in that state."""


MOVES: dict[State, dict[Happened, State]] = {
    State.STOPPED: {Happened.START: State.STARTING},
    State.STARTING: {
        Happened.READY: State.READY,
        Happened.STOP: State.STOPPING,
        Happened.EXITED: State.FAILED,
    },
    State.READY: {Happened.STOP: State.STOPPING, Happened.EXITED: State.FAILED},
    State.STOPPING: {Happened.EXITED: State.STOPPED},
    State.FAILED: {Happened.START: State.STARTING},
}


def move(state: State, happened: Happened) -> State:
    """The state after `happened`. Raises IllegalMove when the table has no such move."""
    try:
        return MOVES[state][happened]
    except KeyError:
        raise IllegalMove(f"{happened.name} while {state.name}") from None
