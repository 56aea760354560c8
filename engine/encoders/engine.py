"""Embeds the texts of all requests, one bounded step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

import numpy as np

from ..protocol import (
    CancelReason,
    Embedded,
    Failed,
    Finished,
    FinishReason,
    RequestEvent,
    RequestProgress,
    Started,
    Timings,
    WorkerStats,
)
from .cache import EmbeddingCache, Tokens, Vector
from .model import EncoderRunner
from .queue import EmbeddingJob, EmbeddingQueue

# A request that comes waits for one step; bigger ones would hardly be faster.
STEP_S = 0.25
FIRST_STEP_TOKENS = 512
MOST_STEP_TOKENS = 8192
# How much of the measured rate the last step counts for.
_NEWEST = 0.3

Emit = Callable[[RequestEvent], None]


class EmbeddingEngine:
    """Runs on one thread; `submit` and `cancel` may be called from any. `emit` must not block."""

    def __init__(self, runner: EncoderRunner, cache_size: int, emit: Emit) -> None:
        self._runner = runner
        self._emit = emit
        self._arrivals: SimpleQueue[EmbeddingJob] = SimpleQueue()
        self._cancelled: SimpleQueue[tuple[str, CancelReason]] = SimpleQueue()
        self._queue = EmbeddingQueue()
        self.cache = EmbeddingCache(cache_size)
        self._rate = 0.0
        self._computed = 0
        self._reused = 0
        self._step_jobs: list[EmbeddingJob] = []

    @property
    def load(self) -> int:
        """Requests that have not ended; from any thread."""
        return len(self._queue) + self._arrivals.qsize()

    def submit(self, job: EmbeddingJob) -> None:
        """Hands a request over."""
        self._arrivals.put(job)

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        """Asks for the end of a request before the next step; unknown ones have ended already."""
        self._cancelled.put((request_id, reason))

    def step(self) -> bool:
        """Embeds the texts of one step; False when there was nothing to do. Raises what the runner raises."""
        self._take_arrivals()
        self._drop_cancelled()
        step = self._queue.next_step(self._step_tokens())
        self._step_jobs = list(dict.fromkeys(job for job, _ in step))
        if not step:
            return False
        begun = time.monotonic()
        for job in self._step_jobs:
            self._start(job, begun)
        texts = list(dict.fromkeys(text for _, text in step))
        vectors = self._runner.embed(texts)
        self._keep(step, dict(zip(texts, vectors, strict=True)), time.monotonic() - begun)
        return True

    def fail_step(self, code: str, message: str) -> None:
        """Ends the requests whose step raised; the others go on."""
        for job in self._step_jobs:
            if job.request_id in self._queue:
                self._fail(job, code, message)

    def cancel_all(self, reason: CancelReason) -> None:
        """Ends every request now."""
        self._take_arrivals()
        for job in tuple(self._queue):
            self._finish(job, "cancelled", reason)

    def stats(self) -> WorkerStats:
        """Counters and gauges; an embedding worker has no blocks and no sessions."""
        jobs = tuple(self._queue)
        queued = [job for job in jobs if job.started is None]
        left = sum(job.tokens_left for job in jobs)
        return WorkerStats(
            blocks_total=0,
            blocks_used=0,
            blocks_cached=0,
            sessions=0,
            requests_running=len(jobs) - len(queued),
            requests_queued=len(queued),
            tokens_queued=sum(job.tokens_left for job in queued),
            tokens_prefilled=self._computed,
            tokens_reused=self._reused,
            tokens_generated=0,
            prefill_tokens_per_s=self._rate,
            decode_tokens_per_s=0.0,
            wait_s=left / self._rate if self._rate else 0.0,
            progress=tuple(_progress(job, queued) for job in jobs),
        )

    def _step_tokens(self) -> int:
        if not self._rate:
            return FIRST_STEP_TOKENS
        return min(max(int(self._rate * STEP_S), 1), MOST_STEP_TOKENS)

    def _take_arrivals(self) -> None:
        while True:
            try:
                job = self._arrivals.get_nowait()
            except Empty:
                return
            job.look_up(self.cache)
            self._queue.add(job)
            self._reused += job.cached_tokens
            if job.is_done:
                self._start(job, time.monotonic())
                self._complete(job)

    def _start(self, job: EmbeddingJob, now: float) -> None:
        if job.started is None:
            job.started = now
            self._emit(
                Started(job.request_id, "exact" if job.is_done else "rebuild", job.cached_tokens, None)
            )

    def _drop_cancelled(self) -> None:
        while True:
            try:
                request_id, reason = self._cancelled.get_nowait()
            except Empty:
                return
            job = next((job for job in self._queue if job.request_id == request_id), None)
            if job is not None:
                self._finish(job, "cancelled", reason)

    def _keep(
        self, step: Sequence[tuple[EmbeddingJob, Tokens]], vectors: dict[Tokens, Vector], seconds: float
    ) -> None:
        tokens = sum(map(len, vectors))
        self._computed += tokens
        rate = tokens / max(seconds, 1e-6)
        self._rate = rate if not self._rate else (1 - _NEWEST) * self._rate + _NEWEST * rate
        for text, vector in vectors.items():
            if np.isfinite(vector).all():
                self.cache.put(text, vector)
        for job, text in step:
            job.vectors[text] = vectors[text]
        for job in self._step_jobs:
            job.compute_s += seconds
            if job.is_done:
                self._complete(job)

    def _complete(self, job: EmbeddingJob) -> None:
        if not all(np.isfinite(vector).all() for vector in job.vectors.values()):
            self._fail(job, "embedding_failed", "the model gave a vector that is not finite for this input")
            return
        dimensions = len(next(iter(job.vectors.values())))
        self._emit(Embedded(job.request_id, dimensions, job.data()))
        self._finish(job, "stop")

    def _finish(self, job: EmbeddingJob, why: FinishReason, reason: CancelReason | None = None) -> None:
        self._queue.remove(job.request_id)
        now = time.monotonic()
        timings = Timings(
            queued_s=max((job.started or now) - job.arrived - job.tokenize_s, 0.0),
            tokenize_s=job.tokenize_s,
            prefill_s=job.compute_s,
            first_token_s=now - job.arrived,
            decode_s=0.0,
        )
        self._emit(
            Finished(job.request_id, why, job.tokens, job.cached_tokens, 0, timings, cancel_reason=reason)
        )

    def _fail(self, job: EmbeddingJob, code: str, message: str) -> None:
        self._queue.remove(job.request_id)
        self._emit(Failed(job.request_id, code, message))


def _progress(job: EmbeddingJob, queued: Sequence[EmbeddingJob]) -> RequestProgress:
    position = queued.index(job) + 1 if job in queued else 0
    return RequestProgress(
        request_id=job.request_id,
        phase="queued" if position else "prefill",
        position=position,
        tokens_done=job.tokens - job.tokens_left,
        tokens_total=job.tokens,
        tokens_generated=0,
    )
