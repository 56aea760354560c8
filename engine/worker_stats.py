"""Tells the daemon what the worker holds and how fast it goes, a few times a second at most."""

from __future__ import annotations

import time
from collections.abc import Callable

from .engine import Engine
from .memory import resident_bytes
from .protocol import WorkerStats

_INTERVAL_S = 0.25


class StatsReporter:
    """Sends WorkerStats when they changed: at intervals during work, and at once when work ends."""

    def __init__(self, engine: Engine, emit: Callable[[WorkerStats], None]) -> None:
        self._engine = engine
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

    def _collect(self) -> WorkerStats:
        engine = self._engine
        running = engine.running
        return WorkerStats(
            rss_bytes=resident_bytes(),
            blocks_total=engine.cache.blocks.size,
            blocks_used=engine.cache.blocks.used,
            blocks_cached=engine.cache.blocks.cached,
            sessions=len(engine.conversations),
            requests_running=running,
            requests_queued=engine.load - running,
            tokens_prefilled=engine.tokens_prefilled,
            tokens_reused=engine.tokens_reused,
            tokens_generated=engine.tokens_generated,
            prefill_tokens_per_s=engine.pace.prefill_rate,
            decode_tokens_per_s=engine.pace.decode_rate,
        )
