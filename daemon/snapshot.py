"""What the daemon says about itself: frozen, made by the daemon, shown by CLI and TUI.

`GET /agentserve/v1/status` is a `StatusSnapshot` as JSON; start progress is a line of `StartupSnapshot`.
Sizes are bytes, times seconds, `started_at` unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..engine.protocol import DrafterCounts, DraftModelInfo, DraftStats, ModelInfo, SelfTest, TierBytes
from .config import Limits

__all__ = [
    "DraftModelInfo",
    "DraftStats",
    "DrafterCounts",
    "Limits",
    "ModelInfo",
    "RequestCounts",
    "RequestRecord",
    "RunningRequest",
    "SelfTest",
    "StartupSnapshot",
    "StatusSnapshot",
    "TierBytes",
    "WorkerSnapshot",
]

Phase = Literal["starting", "pulling", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class StartupSnapshot:
    """How far the start is. `detail` is for people; `bytes_total` is 0 where nothing is measured.

    `error` is set in the phase `failed` and is one line that says what to do. `port` is 0 until known.
    """

    phase: Phase
    detail: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    error: str | None = None
    pid: int = 0
    port: int = 0


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Generation requests since the start, by where they are or how they ended, and their tokens."""

    active: int = 0
    queued: int = 0
    done: int = 0
    cancelled: int = 0
    error: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def received(self) -> int:
        return self.active + self.done + self.cancelled + self.error + self.rejected


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """All that is known of one generation request; a running one has no `terminal_state` yet.

    `id` is the id of the answer, `request_id` that of the header X-Request-ID, `number` counts since the start.
    `state` and `terminal_state` are values of request_state.RequestState. `reason` says why it was refused or
    cancelled or failed. The four times `*_at` are unix seconds that never run backwards; they and the durations, in
    milliseconds, are None for what was not reached. `first_delta_ms` counts from the arrival of the request.
    """

    number: int
    id: str
    request_id: str
    route: str
    client: str
    model: str
    device: str | None
    stream: bool
    state: str
    terminal_state: str | None
    status: int | None
    finish_reason: str | None
    reason: str | None
    error: str | None
    session_id: str | None
    enqueued_at: float
    started_at: float | None
    first_token_at: float | None
    finished_at: float | None
    queue_position: int | None
    queued_ms: float | None
    tokenize_ms: float | None
    load_ms: float | None
    prefill_ms: float | None
    first_delta_ms: float | None
    decode_ms: float | None
    decode_tok_per_s: float | None
    prefix_action: str | None
    cache_miss_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    new_prefill_tokens: int | None
    completion_tokens: int
    draft_tokens: int | None = None
    spec_attempts: int | None = None
    spec_accepts: int | None = None
    accept_length: float | None = None
    drafts: DraftStats | None = None


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request on its way. `position` is its place in the worker's queue from 1 on, 0 once it was taken up.

    Of the `tokens_total` of its prompt, `tokens_done` are reused or computed.
    """

    record: RequestRecord
    position: int
    tokens_done: int
    tokens_total: int
    tokens_generated: int


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker process: `state` is a value of lifecycle.State, `error` why it failed last."""

    name: str
    state: str
    pid: int | None = None
    load_stage: str | None = None
    load_s: float = 0.0
    compile_cache_hit: bool = False
    model: ModelInfo | None = None
    self_test: SelfTest | None = None
    error: str | None = None
    rss_bytes: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0
    sessions: int = 0
    requests_running: int = 0
    requests_queued: int = 0
    tokens_prefilled: int = 0
    tokens_reused: int = 0
    tokens_generated: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    tiers: TierBytes = field(default_factory=TierBytes)
    drafts: DraftStats = field(default_factory=DraftStats)

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that was not computed; 0 before the first prompt."""
        total = self.tokens_reused + self.tokens_prefilled
        return self.tokens_reused / total if total else 0.0


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The whole daemon at one moment. `rss_bytes` is the daemon's own, without its workers.

    `running` are the requests that have not ended, oldest first; `recent` are the last records, newest first.
    """

    version: str
    pid: int
    started_at: float
    uptime_s: float
    host: str
    port: int
    default_model: str
    mock: bool
    draining: bool
    rss_bytes: int
    startup: StartupSnapshot
    requests: RequestCounts
    workers: tuple[WorkerSnapshot, ...] = ()
    running: tuple[RunningRequest, ...] = ()
    recent: tuple[RequestRecord, ...] = ()
    limits: Limits | None = None
