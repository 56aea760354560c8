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
from .capsule import PinWish
from .capsule_store import CapsuleStore, Fetched
from .config import EngineConfig
from .conversations import Conversations
from .kv_pool import OutOfBlocks
from .pace import Pace
from .pinning import pin_again
from .planner import Known, PrefixPlan, plan_prefix
from .protocol import (
    CancelReason,
    Failed,
    Finished,
    FinishReason,
    ListPins,
    PinDone,
    RequestEvent,
    Started,
    TextDelta,
    Unpin,
)
from .runner import Logits, Runner
from .sequence import Sequence
from .session import Session

Emit = Callable[[RequestEvent], None]


class Engine:
    """Runs sequences on one runner, whose blocks and state rows `cache` knows. Without `capsules` there are no pins.

    `stop_tokens` end a turn. `emit` is called on the engine thread and must not block.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        stop_tokens: frozenset[int],
        cache: BlockCache,
        emit: Emit,
        capsules: CapsuleStore | None = None,
    ) -> None:
        self._runner = runner
        self._config = config
        self._stop_tokens = stop_tokens
        self._emit = emit
        self._arrivals: SimpleQueue[Sequence | Unpin | ListPins] = SimpleQueue()
        self._known: dict[str, Sequence] = {}
        self._running: list[Sequence] = []
        self._has_state = runner.geometry.state_bytes > 0
        self.cache = cache
        self.capsules = capsules or CapsuleStore(cache, runner)
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

    def ask(self, message: Unpin | ListPins) -> None:
        """Hands over a question about pins, answered between two steps; from any thread."""
        self._arrivals.put(message)

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        """Asks for the end of a request at its next step boundary; unknown ones have ended already."""
        sequence = self._known.get(request_id)
        if sequence is not None and sequence.cancelled is None:
            sequence.cancelled = reason

    def step(self) -> bool:
        """Computes one step, or copies a block for the disk. False when there was nothing to do."""
        self._take_arrivals()
        self._drop_cancelled()
        self._start_next()
        past = self._running[0].committed if self._running else 0
        work = next_work(self._running[:1], self.pace.chunk(past), at_boundaries=self._has_state)
        if work is None:
            return self.capsules.save_some(is_busy=False)
        begun = time.perf_counter()
        logits = self._runner.forward(plan_step(work, self._config.exact))
        self._commit(work, logits, time.perf_counter() - begun)
        self.capsules.save_some(is_busy=True)
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
        self.cache.blocks.check_integrity([*(s.block_table for s in sessions), *self.capsules.holders()])
        held = [s.state_rows for s in sessions]
        self.cache.state_rows.check_integrity([*held, self.cache.holders_of_state()])
        self.cache.check_integrity()

    def _take_arrivals(self) -> None:
        while True:
            try:
                arrival = self._arrivals.get_nowait()
            except Empty:
                return
            if isinstance(arrival, Sequence):
                self._running.append(arrival)
            else:
                self._emit(self.capsules.answer(arrival))

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._running if s.cancelled]:
            self._finish(sequence, "cancelled")

    def _start_next(self) -> None:
        """Starts the first sequence; the next one when that failed or had nothing to compute."""
        while self._running and not self._running[0].session:
            self._start(self._running[0])

    def _start(self, sequence: Sequence) -> None:
        """Plans a sequence's prefix and gives it a session with room for all that it may become."""
        if sequence.pin is not None and not self._may_pin(sequence, sequence.pin):
            return
        # The last token is computed again for its logits, where those are wanted.
        most = len(sequence.prompt) - (sequence.pin is None)
        fetched = self.capsules.fetch(sequence.namespace, sequence.prompt, most)
        known = self.cache.longest(sequence.namespace, sequence.prompt)
        match = self.cache.usable(known, most)
        plan = self._plan(sequence, known, match, fetched)
        self.cache.touch(match)
        try:
            sequence.session = self._open_session(sequence, match)
        except OutOfBlocks as error:
            self.fail_running("kv_over_budget", f"the KV cache is too full for this request: {error}")
            return
        sequence.cached_tokens = plan.cached_tokens
        self.tokens_reused += plan.cached_tokens
        sequence.stamps.started = time.monotonic()
        if sequence.pin is not None:
            self._finish_pin(sequence)
            return
        self.capsules.reused(sequence.namespace, sequence.prompt, plan.cached_tokens)
        self._tell_start(sequence, plan)
        self._recompute(sequence, fetched)

    def _tell_start(self, sequence: Sequence, plan: PrefixPlan) -> None:
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

    def _recompute(self, sequence: Sequence, fetched: Fetched) -> None:
        """Queues pins that the disk can't give back; most of their tokens will be known by then."""
        for pin in fetched.lost:
            again = pin_again(sequence, pin)
            if again.request_id not in self._known:
                self._known[again.request_id] = again
                self._running.append(again)

    def _may_pin(self, sequence: Sequence, wish: PinWish) -> bool:
        """Whether a pin fits the budget; else it has been answered. One that was let go meanwhile is dropped."""
        refusal = self.capsules.refusal(sequence.request_id, wish, sequence.prompt)
        if refusal is None and not (wish.internal and not self.capsules.has(wish)):
            return True
        self._forget(sequence)
        if refusal is not None and not wish.internal:
            self._emit(refusal)
        return False

    def _finish_pin(self, sequence: Sequence) -> None:
        """Pins what was computed, once that is all of it."""
        session, wish = sequence.session, sequence.pin
        assert session is not None
        assert wish is not None
        if session.committed < len(sequence.prompt):
            return
        self._forget(sequence)
        info, replaced = self.capsules.pin(wish, session.leaf)
        if not wish.internal:
            self._emit(PinDone(sequence.request_id, info, sequence.cached_tokens, replaced))

    def _plan(self, sequence: Sequence, found: Match, match: Match, fetched: Fetched) -> PrefixPlan:
        """`found` is all that is known of the prompt, `match` the part of it that is taken over."""
        namespace, prompt = sequence.namespace, sequence.prompt
        known = Known(
            usable=match.length,
            stored=found.length,
            namespace_empty=not self.cache.knows(namespace),
            evicted=self.cache.was_evicted(match, prompt),
            restored=fetched.restored,
            lost=fetched.lost[0].lost if fetched.lost else None,
        )
        named = self.conversations.get(namespace, sequence.session_id) if sequence.session_id else None
        nearest = self.conversations.nearest(namespace, prompt)
        return plan_prefix(len(prompt), known, nearest, named, sequence.canonical)

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
            self.pace.prefilled(len(work.tokens), sequence.committed, seconds)
        else:
            self.pace.decoded(len(work.tokens), seconds)
        sequence.session.commit(work.tokens)
        if sequence.is_prefilling and self._has_state:
            sequence.session.checkpoint(self._runner)
        if sequence.pin is not None:
            self._finish_pin(sequence)
        elif work.samples:
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
        if sequence.origin is not None:
            # Before the client hears of the end: its next turn may follow at once.
            sequence.origin.remember(sequence.output, stop_string)
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
        if sequence.pin is None:
            self.capsules.turn_ended(sequence.namespace, session.leaf)
