"""The messages about pins that name no other message; `protocol` has them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PinTier = Literal["pool", "disk", "lost"]


@dataclass(frozen=True, slots=True)
class PrefixPin:
    """A request's wish to pin the first `tokens` tokens of its own prompt, or all of it for None, in whole blocks.

    Over the budget the request is Rejected before any work, or with `best_effort` it goes on without a pin.
    """

    tokens: int | None = None
    best_effort: bool = False


@dataclass(frozen=True, slots=True)
class PrefixPinned:
    """What became of a PrefixPin: `tokens` are pinned as `name`, or the pin was `rejected` with this code, or it was
    `skipped` because the prompt has no whole block."""

    tokens: int = 0
    name: str | None = None
    rejected: str | None = None
    skipped: Literal["short"] | None = None


# ---- daemon → worker


@dataclass(frozen=True, slots=True)
class Unpin:
    """Lets a pin go, in the pool and on disk. Answered by Unpinned, or PinRefused with 404."""

    request_id: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ListPins:
    """Asks for the pins of a namespace, or of all for None. Answered by PinList."""

    request_id: str
    namespace: str | None = None


# ---- worker → daemon


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pin. Its `tier` is where a request finds it: in the pool, on disk, or nowhere until it is computed again.

    `bytes` is its size in the pool, `on_disk` whether it survives a restart. Times are unix seconds; `last_used`
    and `hits` count from the start of the worker.
    """

    name: str
    namespace: str
    tokens: int
    bytes: int
    tier: PinTier
    on_disk: bool
    hits: int
    created: float
    last_used: float | None = None
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class PinDone:
    """The prefix is pinned. `cached_tokens` of it were known before, the rest was computed."""

    request_id: str
    pin: PinInfo
    cached_tokens: int
    replaced: bool


@dataclass(frozen=True, slots=True)
class PinRefused:
    """Nothing was changed. `status` is the HTTP status; an over-budget pin says how many bytes were wanted and free."""

    request_id: str
    status: int
    code: str
    message: str
    param: str | None = None
    wanted_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Unpinned:
    """The pin is gone; `pin` is what it was."""

    request_id: str
    pin: PinInfo


@dataclass(frozen=True, slots=True)
class PinList:
    """All pins, by name, and what pins and capsules take of their budgets. `disk_*` is 0 without a disk tier."""

    request_id: str
    pins: tuple[PinInfo, ...]
    used_bytes: int
    budget_bytes: int
    disk_bytes: int
    disk_budget_bytes: int


PinAnswer = PinDone | PinRefused | Unpinned | PinList
