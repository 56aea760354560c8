"""The parts of a running daemon, as its HTTP handlers see them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice

from .. import __version__
from .config import Settings
from .records.ledger import Entry, Ledger
from .records.log import RecordLog
from .records.metrics import Metrics
from .records.records import running
from .snapshot import StatusSnapshot, WorkerSnapshot
from .startup import Startup
from .workers.router import Router
from .workers.supervisor import Supervisor

_RECENT = 20


@dataclass(slots=True)
class Service:
    """Wired by the server. `request_shutdown` is called with True to drain first; it returns at once."""

    settings: Settings
    router: Router
    startup: Startup
    request_shutdown: Callable[[bool], None]
    records: RecordLog
    ledger: Ledger = field(init=False)
    metrics: Metrics = field(init=False)
    started_at: float = field(default_factory=time.time)
    _born: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self._ended)
        self.metrics = Metrics(self.snapshot)

    @property
    def uptime_s(self) -> float:
        return round(time.monotonic() - self._born, 3)

    def snapshot(self) -> StatusSnapshot:
        """Everything about the daemon now; loads nothing and asks no worker."""
        settings, startup = self.settings, self.startup.state
        return StatusSnapshot(
            version=__version__,
            pid=os.getpid(),
            started_at=self.started_at,
            uptime_s=self.uptime_s,
            host=settings.host,
            port=startup.port or settings.port,
            default_model=self.router.default_model,
            mock=settings.mock,
            draining=self.router.closed,
            rss_bytes=resident_bytes(os.getpid()),
            startup=startup,
            requests=self.ledger.counts(),
            workers=tuple(worker_snapshot(one) for one in self.router.supervisors()),
            running=tuple(running(entry) for entry in self.ledger.active.values()),
            recent=tuple(islice(self.records.newest(), _RECENT)),
            limits=settings.limits,
        )

    def _ended(self, entry: Entry) -> None:
        self.metrics.ended(self.records.close(entry))


def worker_snapshot(supervisor: Supervisor) -> WorkerSnapshot:
    """What is known of one worker."""
    facts, stats = supervisor.facts, supervisor.facts.stats
    shown = WorkerSnapshot(
        name=supervisor.load.name,
        state=supervisor.state.value,
        pid=facts.pid,
        load_stage=facts.load_stage.value if facts.load_stage else None,
        load_s=facts.load_s,
        compile_cache_hit=facts.compile_cache_hit,
        model=facts.model,
        self_test=facts.self_test,
        error=facts.failure.message if facts.failure else None,
        rss_bytes=resident_bytes(facts.pid),
    )
    if stats is None:
        return shown
    return replace(
        shown,
        blocks_used=stats.blocks_used,
        blocks_cached=stats.blocks_cached,
        blocks_total=stats.blocks_total,
        sessions=stats.sessions,
        requests_running=stats.requests_running,
        requests_queued=stats.requests_queued,
        tokens_prefilled=stats.tokens_prefilled,
        tokens_reused=stats.tokens_reused,
        tokens_generated=stats.tokens_generated,
        prefill_tokens_per_s=stats.prefill_tokens_per_s,
        decode_tokens_per_s=stats.decode_tokens_per_s,
        tiers=stats.tiers,
        drafts=stats.drafts,
    )


def resident_bytes(pid: int | None) -> int:
    """Resident memory of a process, from proc(5) `statm`; 0 where that can't be read."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
