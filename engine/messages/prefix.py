"""What prefix memory says of one prompt and of itself; `protocol` has all messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PrefixAction = Literal["exact", "append", "message_append", "restore", "truncate", "fork", "rebuild"]
MissReason = Literal[
    "cold",
    "diverged",
    "diverged_at_start",
    "too_short",
    "no_checkpoint",
    "evicted",
    "fingerprint_mismatch",
    "capsule_damaged",
]


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Where a prompt parts from the nearest known text: the texts of either from token `position` on, and the end of
    what both share before it. Control tokens are spelled out; see `differences.MOST_CHARACTERS` for the lengths."""

    position: int
    shared: str
    known: str
    prompt: str


@dataclass(frozen=True, slots=True)
class TierBytes:
    """What prefix memory takes in each tier, and what it may take. `pinned` is a part of `pool`."""

    pool: int = 0
    pool_budget: int = 0
    pinned: int = 0
    pinned_budget: int = 0
    disk: int = 0
    disk_budget: int = 0
