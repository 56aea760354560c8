"""The engine loop: plan a step, run it, commit it, tell what became certain.

Exactly one thread calls `step` and touches runner, pool and sessions (I1). `submit` and `cancel` may be called
from any thread; they only hand over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import numpy as np

from .batching import Work, next_work, plan_step
from .block_cache import BlockCache, Match
from .config import EngineConfig
from .conversations import Conversations
from .kv_pool import OutOfBlocks
from .pace import Pace
from .planner import Known, PrefixPlan, plan_prefix
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
    """Runs sequences on one runner, whose blocks and state rows `cache` knows.

    `stop_tokens` end a turn. `emit` is called on the engine thread and must not block.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        stop_tokens: frozenset[int],
        cache: BlockCache,
        emit: Emit,
    ) -> None:
        self._runner = runner
        self._config = config
        self._stop_tokens = stop_tokens
        self._emit = emit
        self._arrivals: SimpleQueue[Sequence] = SimpleQueue()
        self._known: dict[str, Sequence] = {}
        self._running: list[Sequence] = []
        self._has_state = runner.geometry.state_bytes > 0
        self.cache = cache
        self.conversations = Conversations()
        self.pace = Pace(config)
        self.tokens_prefilled = 0
        self.tokens_reused = 0
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
        work = next_work(self._running[:1], self.pace.chunk, at_boundaries=self._has_state)
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
        """Asserts that references and holders of blocks and state rows agree, and that the index is sound."""
        sessions = [s.session for s in self._running if s.session]
        self.cache.blocks.check_integrity([s.block_table for s in sessions])
        held = [s.state_rows for s in sessions]
        self.cache.state_rows.check_integrity([*held, self.cache.holders_of_state()])
        self.cache.check_integrity()

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
        """Plans the first sequence's prefix and gives it a session with room for all that it may become."""
        if not self._running or self._running[0].session:
            return
        sequence = self._running[0]
        match = self.cache.match(sequence.namespace, sequence.prompt, len(sequence.prompt) - 1)
        plan = self._plan(sequence, match)
        self.cache.touch(match)
        try:
            sequence.session = self._open_session(sequence, match)
        except OutOfBlocks as error:
            self.fail_running("kv_over_budget", f"the KV cache is too full for this request: {error}")
            return
        sequence.cached_tokens = plan.cached_tokens
        self.tokens_reused += plan.cached_tokens
        sequence.stamps.started = time.monotonic()
        sequence.conversation = self.conversations.record(
            plan.continues, sequence.namespace, sequence.session_id, plan.action
        )
        self._emit(
            Started(
                request_id=sequence.request_id,
                prefix_action=plan.action,
                cached_tokens=plan.cached_tokens,
                cache_miss_reason=plan.miss_reason,
                first_difference=plan.first_difference,
                session_id=sequence.conversation.id,
            )
        )

    def _plan(self, sequence: Sequence, match: Match) -> PrefixPlan:
        namespace, prompt = sequence.namespace, sequence.prompt
        known = Known(
            usable=match.length,
            stored=self.cache.stored(namespace, prompt),
            namespace_empty=not self.cache.knows(namespace),
            evicted=self.cache.was_evicted(match, prompt),
        )
        named = self.conversations.get(namespace, sequence.session_id) if sequence.session_id else None
        return plan_prefix(len(prompt), known, self.conversations.nearest(namespace, prompt), named)

    def _open_session(self, sequence: Sequence, match: Match) -> Session:
        session = Session(self.cache, self._runner.geometry, sequence.namespace, sequence.stable)
        # One more than it can commit: a dummy row of exact mode needs a place too.
        room = len(sequence.prompt) + sequence.max_new_tokens + 1
        try:
            session.begin(match, room, self._runner)
        except OutOfBlocks:
            session.close()
            raise
        return session

    def _commit(self, work: Work, logits: Logits, seconds: float) -> None:
        sequence = work.sequence
        assert sequence.session is not None
        if sequence.is_prefilling:
            self.tokens_prefilled += len(work.tokens)
            self.pace.prefilled(len(work.tokens), seconds)
        else:
            self.pace.decoded(len(work.tokens), seconds)
        sequence.session.commit(work.tokens)
        if sequence.is_prefilling and self._has_state:
            sequence.session.checkpoint(self._runner)
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
        session, sequence.session = sequence.session, None
        if session is None:
            return
        if sequence.conversation is not None:
            sequence.conversation.tokens = np.array(session.tokens, np.int32)
            sequence.conversation.turn_start = sequence.turn_start
        session.close()
