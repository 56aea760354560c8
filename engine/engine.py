"""The engine loop: plan a step, run it, commit it, tell what became certain.

Exactly one thread calls `step` and touches runner, pool and sessions (I1). `submit` and `cancel` may be called
from any thread; they only hand over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from .batching import Work, next_work, plan_step
from .config import EngineConfig
from .kv_pool import BlockPool
from .pace import Pace
from .protocol import (
    CancelReason,
    Failed,
    Finished,
    FinishReason,
    RequestEvent,
    Started,
    TextDelta,
)
from .runner import Logits, Runner
from .sequence import Sequence
from .session import Session

Emit = Callable[[RequestEvent], None]


class Engine:
    """Runs sequences on one runner, whose pool has `blocks` KV blocks and `state_rows` rows of state.

    `stop_tokens` end a turn. `emit` is called on the engine thread and must not block.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        stop_tokens: frozenset[int],
        blocks: int,
        state_rows: int,
        emit: Emit,
    ) -> None:
        self._runner = runner
        self._config = config
        self._stop_tokens = stop_tokens
        self._emit = emit
        self._arrivals: SimpleQueue[Sequence] = SimpleQueue()
        self._known: dict[str, Sequence] = {}
        self._running: list[Sequence] = []
        self.blocks = BlockPool(blocks)
        self.state_rows = BlockPool(state_rows)
        self.pace = Pace(config)
        self.tokens_prefilled = 0
        self.tokens_generated = 0

    @property
    def load(self) -> int:
        """Requests that are queued or running."""
        return len(self._known)

    @property
    def running(self) -> int:
        """Requests that have a session; on the engine thread."""
        return sum(s.session is not None for s in self._running)

    def submit(self, sequence: Sequence) -> None:
        """Hands a request over; from any thread."""
        self._known[sequence.request_id] = sequence
        self._arrivals.put(sequence)

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        """Asks for the end of a request at its next step boundary; unknown ones have ended already."""
        sequence = self._known.get(request_id)
        if sequence is not None and sequence.cancelled is None:
            sequence.cancelled = reason

    def step(self) -> bool:
        """Computes one step. False when there was nothing to do."""
        self._take_arrivals()
        self._drop_cancelled()
        self._start_next()
        work = next_work(self._running[:1], self.pace.chunk)
        if work is None:
            return False
        begun = time.perf_counter()
        logits = self._runner.forward(plan_step(work, self._config.exact))
        self._commit(work, logits, time.perf_counter() - begun)
        return True

    def cancel_all(self, reason: CancelReason) -> None:
        """Ends every request now; on the engine thread."""
        self._take_arrivals()
        for sequence in self._running:
            sequence.cancelled = sequence.cancelled or reason
        self._drop_cancelled()

    def check_integrity(self) -> None:
        """Asserts that references and holders of blocks and state rows agree."""
        sessions = [s.session for s in self._running if s.session]
        self.blocks.check_integrity([s.block_table for s in sessions])
        self.state_rows.check_integrity([[s.state_row] for s in sessions if s.state_row is not None])

    def _take_arrivals(self) -> None:
        while True:
            try:
                self._running.append(self._arrivals.get_nowait())
            except Empty:
                return

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._running if s.cancelled]:
            self._finish(sequence, "cancelled")

    def _start_next(self) -> None:
        """Gives the first sequence its session, and room for all that it may become."""
        if not self._running or self._running[0].session:
            return
        sequence = self._running[0]
        session = Session(self._runner.geometry, self.blocks, self.state_rows)
        if session.state_row is not None:
            self._runner.clear_state(session.state_row)
        # One more than it can commit: a dummy row of exact mode needs a place too.
        session.reserve(len(sequence.prompt) + sequence.max_new_tokens + 1)
        sequence.session = session
        sequence.stamps.started = time.monotonic()
        self._emit(Started(sequence.request_id, "rebuild", 0, "cold"))

    def _commit(self, work: Work, logits: Logits, seconds: float) -> None:
        sequence = work.sequence
        assert sequence.session is not None
        if sequence.is_prefilling:
            self.tokens_prefilled += len(work.tokens)
            self.pace.prefilled(len(work.tokens), seconds)
        else:
            self.pace.decoded(len(work.tokens), seconds)
        sequence.session.commit(work.tokens)
        if work.samples:
            self._accept(sequence, sequence.sampler.sample(logits[-1], sequence.known))

    def _accept(self, sequence: Sequence, token: int) -> None:
        """A sampled token becomes part of the text, unless it ends it."""
        if sequence.stamps.first_token is None:
            sequence.stamps.first_token = time.monotonic()
        self.tokens_generated += 1
        sequence.output.append(token)
        sequence.unsent_tokens += 1
        sequence.sampler.observe(token)
        if token in self._stop_tokens:
            return self._finish(sequence, "stop")
        text, stopped_by = sequence.text.push(token)
        self._send(sequence, text)
        if stopped_by is not None:
            return self._finish(sequence, "stop", stopped_by)
        if len(sequence.output) == sequence.max_new_tokens:
            return self._finish(sequence, "length")
        return None

    def _send(self, sequence: Sequence, text: str) -> None:
        if text:
            self._emit(TextDelta(sequence.request_id, text, sequence.unsent_tokens))
            sequence.unsent_tokens = 0

    def _finish(self, sequence: Sequence, reason: FinishReason, stop_string: str | None = None) -> None:
        if stop_string is None:
            rest = sequence.text.finish()
            self._send(sequence, rest.text)
            stop_string = rest.stopped_by
        if stop_string is not None:
            reason = "stop"
        sequence.stamps.finished = time.monotonic()
        self._forget(sequence)
        self._emit(
            Finished(
                request_id=sequence.request_id,
                finish_reason=reason,
                prompt_tokens=len(sequence.prompt),
                cached_tokens=sequence.cached_tokens,
                completion_tokens=len(sequence.output),
                timings=sequence.stamps.timings(),
                stop_string=stop_string,
                cancel_reason=sequence.cancelled if reason == "cancelled" else None,
            )
        )

    def fail_running(self, code: str, message: str) -> None:
        """Ends the request whose step raised; the others go on."""
        sequence = self._running[0]
        self._forget(sequence)
        self._emit(Failed(sequence.request_id, code, message))

    def _forget(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        del self._known[sequence.request_id]
        if sequence.session is not None:
            sequence.session.close()
            sequence.session = None
