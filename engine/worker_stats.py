"""Tells the daemon what the worker holds and how fast it goes, a few times a second at most."""

from __future__ import annotations

import time
from collections.abc import Callable

from .engine import Engine
from .protocol import WorkerStats

_INTERVAL_S = 0.25


class StatsReporter:
    """Sends what `collect` gives when it changed: at intervals during work, and at once when work ends."""

    def __init__(self, collect: Callable[[], WorkerStats], emit: Callable[[WorkerStats], None]) -> None:
        self._collect = collect
        self._emit = emit
        self._last: WorkerStats | None = None
        self._sent_at = 0.0

    def report(self, idle: bool = False) -> None:
        """On the engine thread, after a step or when there is nothing to do."""
        now = time.monotonic()
        if not idle and now - self._sent_at < _INTERVAL_S:
            return
        stats = self._collect()
        if stats != self._last:
            self._emit(stats)
            self._last, self._sent_at = stats, now


def engine_stats(engine: Engine) -> WorkerStats:
    """What a worker of a decoder holds; on the engine thread."""
    progress = engine.progress()
    queued = [entry for entry in progress if entry.position]
    return WorkerStats(
        blocks_total=engine.cache.blocks.size,
        blocks_used=engine.cache.blocks.used,
        blocks_cached=engine.cache.blocks.cached,
        sessions=len(engine.conversations),
        requests_running=len(progress) - len(queued),
        requests_queued=len(queued),
        tokens_queued=sum(entry.tokens_total for entry in queued),
        tokens_prefilled=engine.tokens_prefilled,
        tokens_reused=engine.tokens_reused,
        tokens_generated=engine.tokens_generated,
        prefill_tokens_per_s=engine.pace.prefill_rate,
        decode_tokens_per_s=engine.pace.decode_rate,
        wait_s=engine.backlog().seconds,
        progress=progress,
        tiers=engine.capsules.tiers(),
        drafts=engine.speculation.stats,
    )
