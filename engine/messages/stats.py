"""What a worker tells about itself while it works: counters, gauges, and where each request stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .drafts import DraftStats
from .prefix import TierBytes


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Where one request stands in the worker. `position` is its place in the queue from 1 on, 0 once it started.

    Of the `tokens_total` of its prompt, `tokens_done` are reused or computed.
    """

    request_id: str
    phase: Literal["queued", "prefill", "decode"]
    position: int
    tokens_done: int
    tokens_total: int
    tokens_generated: int


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Counters and gauges of the worker, sent when they changed and at most a few times a second.

    `tokens_queued` are the prompt tokens of all queued requests. In `wait_s` seconds all that is queued or running now
    will be done, by the measured rates; 0 while nothing was measured. `progress` tells of every request that has not
    ended, those that have started first, then the queue in its order.
    """

    blocks_total: int
    blocks_used: int
    blocks_cached: int
    sessions: int
    requests_running: int
    requests_queued: int
    tokens_queued: int
    tokens_prefilled: int
    tokens_reused: int
    tokens_generated: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    wait_s: float = 0.0
    progress: tuple[RequestProgress, ...] = ()
    tiers: TierBytes = field(default_factory=TierBytes)
    drafts: DraftStats = field(default_factory=DraftStats)
