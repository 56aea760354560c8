"""The engine loop: plan a step, run it, commit it, tell what became certain.

Exactly one thread calls `step` and touches runner, pool and sessions (I1). `submit` and `cancel` may be called
from any thread; they only hand over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from .capsules.capsule import PinWish
from .capsules.store import CapsuleStore, Fetched
from .config import EngineConfig
from .drafting.draft_model import DraftModel
from .drafting.speculation import Speculation
from .prefix import pins as prefix_pins
from .prefix.block_cache import BlockCache
from .prefix.conversations import Conversations
from .prefix.integrity import Holders, IntegrityCheck, IntegrityChecks
from .prefix.kv_pool import OutOfBlocks
from .prefix.pinning import pin_again
from .prefix.ready_blocks import ReadyBlocks
from .prefix.reuse import Reuse
from .prefix.session_desk import SessionDesk
from .protocol import (
    CancelReason,
    Failed,
    ListPins,
    PinDone,
    RequestEvent,
    RequestProgress,
    SessionCommand,
    Started,
    Unpin,
)
from .replies.replying import CANCELLED, Ending, Replies, Run, finished
from .runners.runner import Logits, Runner
from .scheduling.backlog import Backlog, measure
from .scheduling.batching import Work, next_work, plan_step
from .scheduling.opening import Opening
from .scheduling.pace import Pace
from .scheduling.rooms import Rooms
from .scheduling.scheduler import Scheduler
from .sequence import Sequence

Emit = Callable[[RequestEvent], None]


class Engine:
    """Runs sequences on one runner, whose blocks and state rows `cache` knows. Without `capsules` there are no pins.

    `stop_tokens` end a turn. `emit` is called on the engine thread and must not block. `draft_model` has blocks of its
    own.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        stop_tokens: frozenset[int],
        cache: BlockCache,
        emit: Emit,
        capsules: CapsuleStore | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        self._runner = runner
        self._config = config
        self._replies = Replies(stop_tokens, emit)
        self._emit = emit
        self._arrivals: SimpleQueue[Sequence | Unpin | ListPins | SessionCommand] = SimpleQueue()
        self._known: dict[str, Sequence] = {}
        # What the engine thread has taken over, by request id.
        self._sequences: dict[str, Sequence] = {}
        self._current: Sequence | None = None
        self._scheduler = Scheduler(config.turn_seconds, config.max_sessions)
        self._has_state = runner.geometry.state_bytes > 0
        self.cache = cache
        self.capsules = capsules or CapsuleStore(cache, runner)
        self.conversations = Conversations()
        self._sessions = SessionDesk(self.conversations, cache, runner.geometry, self.capsules.disk)
        step_tokens = config.draft_limits.most + 1
        self._rooms = Rooms(cache.blocks, runner.geometry, config.reply_room, step_tokens)
        self._opening = Opening(runner, cache, self.capsules, self.conversations, self._rooms)
        self._ready = ReadyBlocks(runner, cache.blocks, config.max_chunk // runner.geometry.block_tokens)
        self.pace = Pace(config)
        self.speculation = Speculation(runner, cache, config, draft_model)
        checks = (IntegrityCheck(cache, self._holders), *self.speculation.integrity)
        self.integrity = IntegrityChecks(checks)
        self.tokens_prefilled = 0
        self.tokens_reused = 0
        self.tokens_generated = 0

    @property
    def load(self) -> int:
        """Requests that are queued or running."""
        return len(self._known)

    def backlog(self) -> Backlog:
        """What waits and what runs, and how long that will take; from any thread."""
        return measure(tuple(self._known.values()), self.pace, self._computed_share())

    def progress(self) -> tuple[RequestProgress, ...]:
        """Where all requests stand, those that have started first; on the engine thread."""
        running = [self._sequences[name].progress(0) for name in self._scheduler.running()]
        queue = enumerate(self._scheduler.queue(), 1)
        return (*running, *(self._sequences[name].progress(place) for place, name in queue))

    def submit(self, sequence: Sequence) -> None:
        """Hands a request over; from any thread."""
        self._known[sequence.request_id] = sequence
        self._arrivals.put(sequence)

    def ask(self, message: Unpin | ListPins | SessionCommand) -> None:
        """Hands over a question about pins or sessions, answered between two steps; from any thread."""
        self._arrivals.put(message)

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        """Asks for the end of a request at its next step boundary; unknown ones have ended already."""
        sequence = self._known.get(request_id)
        if sequence is not None and sequence.cancelled is None:
            sequence.cancelled = reason

    def step(self) -> bool:
        """Computes one step, or does something useful without one. False when there was nothing to do."""
        self._current = None
        self._take_arrivals()
        self._drop_ended()
        begun = time.perf_counter()
        sequence = self._next()
        if sequence is None:
            return self._idle()
        chunk = self.pace.chunk(sequence.committed)
        work = next_work(sequence, chunk, at_boundaries=self._has_state)
        if not sequence.is_prefilling:
            work = replace(work, draft=self.speculation.draft(sequence))
        stepped = time.perf_counter()
        logits = self._runner.forward(plan_step(work, self._config.exact))
        ended = time.perf_counter()
        self._scheduler.ran(ended - begun)
        self._commit(work, logits, ended - stepped, ended - begun)
        self._current = None
        self.capsules.save_some(is_busy=True)
        return True

    def _idle(self) -> bool:
        """Does a part of what is better done before the next request comes. False when nothing is left to do."""
        return self._ready.write_one() or self.capsules.save_some(is_busy=False) or self.speculation.idle()

    def cancel_all(self, reason: CancelReason) -> None:
        """Ends every request now; on the engine thread."""
        self._take_arrivals()
        for sequence in self._sequences.values():
            sequence.cancelled = sequence.cancelled or reason
        self._drop_ended()

    def fail_current(self, code: str, message: str) -> bool:
        """Ends the request whose step raised; the others go on. False when it was no request's step."""
        current = self._current
        if current is None or current.request_id not in self._sequences:
            return False
        self._fail(current, code, message)
        return True

    def _holders(self) -> Holders:
        sessions = [s.session for s in self._sequences.values() if s.session]
        return Holders(
            blocks=[*(s.block_table for s in sessions), *self.capsules.holders()],
            state_rows=[*(s.state_rows for s in sessions), self.cache.holders_of_state()],
        )

    def _computed_share(self) -> float:
        """The share of prompt tokens that was computed and not reused; 1 before the first prompt."""
        total = self.tokens_prefilled + self.tokens_reused
        return self.tokens_prefilled / total if total else 1.0

    def _enter(self, sequence: Sequence) -> None:
        self._sequences[sequence.request_id] = sequence
        self._scheduler.add(sequence.request_id, sequence.lane, joins=sequence.choice > 0)

    def _take_arrivals(self) -> None:
        if self._config.session_idle_s:
            self.conversations.forget_idle(time.time() - self._config.session_idle_s)
        while True:
            try:
                arrival = self._arrivals.get_nowait()
            except Empty:
                return
            if isinstance(arrival, Sequence):
                self._admit(arrival)
            elif isinstance(arrival, Unpin | ListPins):
                self._emit(self.capsules.answer(arrival))
            else:
                self._emit(self._sessions.answer(arrival))

    def _admit(self, sequence: Sequence) -> None:
        """Takes over a request, unless it asks for a pin that has no room."""
        refused = prefix_pins.admit(self.capsules, sequence)
        if refused is not None:
            del self._known[sequence.request_id]
            self._emit(refused)
            return
        if sequence.admission is not None:
            self._emit(sequence.admission)
        self._enter(sequence)

    def _drop_ended(self) -> None:
        """Ends what was cancelled and what has passed its deadline."""
        now = time.monotonic()
        for sequence in tuple(self._sequences.values()):
            if sequence.deadline is not None and now >= sequence.deadline:
                sequence.cancelled = sequence.cancelled or CancelReason.DEADLINE
            if sequence.cancelled:
                self._finish(sequence, CANCELLED)

    def _next(self) -> Sequence | None:
        """The sequence whose turn it is, started if need be; None when there is none."""
        while (name := self._scheduler.choose(self._may_start)) is not None:
            sequence = self._current = self._sequences[name]
            if sequence.session is None:
                self._start(sequence)
            if sequence.session is not None and self._has_room(sequence):
                return sequence
        return None

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether a started sequence can take its next step; else it waits for another one to end."""
        if self._rooms.grow(sequence, self._started()):
            return True
        if not self._scheduler.stall(sequence.request_id):
            self._fail(sequence, "kv_over_budget", "the KV cache is too full to go on with this request")
        return False

    def _started(self) -> list[Sequence]:
        return [sequence for sequence in self._sequences.values() if sequence.session]

    def _may_start(self, name: str) -> bool:
        """Whether nobody is computing the next part of its prompt already: siblings compute a common prefix once."""
        waiting, size = self._sequences[name], self._runner.geometry.block_tokens
        return not any(one.computes_for(waiting, size) for one in self._sequences.values())

    def _start(self, sequence: Sequence) -> None:
        """Gives a sequence its session, if there is room. It may end at once, when there is nothing to compute."""
        if sequence.pin is not None and not self._may_pin(sequence, sequence.pin):
            return
        try:
            opened = self._opening.open(sequence, self._started())
        except OutOfBlocks as error:
            if not self._scheduler.no_room():
                self._fail(sequence, "kv_over_budget", f"the KV cache is too full for this request: {error}")
            return
        self._scheduler.started(sequence.request_id)
        self.tokens_reused += sequence.cached_tokens
        sequence.stamps.started = time.monotonic()
        if sequence.pin is not None:
            self._finish_pin(sequence)
            return
        self.capsules.reused(sequence.namespace, sequence.prompt, sequence.cached_tokens)
        prefix_pins.keep(self.capsules, sequence, self._runner.geometry.block_tokens)
        self._tell_start(sequence, opened)
        self._recompute(sequence, opened.fetched)

    def _tell_start(self, sequence: Sequence, reuse: Reuse) -> None:
        plan = reuse.plan
        if not sequence.choice:
            # A conversation goes on in one way only, which is the first answer.
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
                session_id=sequence.conversation.id if sequence.conversation else None,
                difference=reuse.difference,
            )
        )

    def _recompute(self, sequence: Sequence, fetched: Fetched) -> None:
        """Queues pins that the disk can't give back; most of their tokens will be known by then."""
        for pin in fetched.lost:
            again = pin_again(sequence, pin)
            if again.request_id not in self._known:
                self._known[again.request_id] = again
                self._enter(again)

    def _may_pin(self, sequence: Sequence, wish: PinWish) -> bool:
        """Whether a pin fits the budget; else it has been answered. One that was let go meanwhile is dropped."""
        refusal = self.capsules.reserve(sequence.request_id, wish, sequence.prompt)
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

    def _commit(self, work: Work, logits: Logits, seconds: float, whole: float) -> None:
        """`seconds` is what the runner took, `whole` is that and the search for a draft."""
        if work.sequence.is_prefilling:
            self._commit_prompt(work, logits, seconds)
        else:
            self._commit_reply(work, logits, seconds, whole)

    def _commit_prompt(self, work: Work, logits: Logits, seconds: float) -> None:
        sequence = work.sequence
        assert sequence.session is not None
        self.tokens_prefilled += len(work.tokens)
        self.pace.prefilled(len(work.tokens), sequence.committed, seconds)
        self.speculation.interrupted()
        sequence.session.commit(work.tokens)
        if self._has_state:
            sequence.session.checkpoint(self._runner)
        prefix_pins.keep(self.capsules, sequence, self._runner.geometry.block_tokens)
        if sequence.pin is not None:
            self._finish_pin(sequence)
        elif work.samples:
            self._replied(sequence, self._replies.accept(sequence, (), logits))

    def _commit_reply(self, work: Work, logits: Logits, seconds: float, whole: float) -> None:
        """Keeps of a decode step what the model agreed to; the rest of the draft was never there."""
        sequence, context = work.sequence, work.sequence.committed
        assert sequence.session is not None
        run = self._replies.accept(sequence, work.draft, logits)
        # The last token of a run is not fed yet, the one before the draft was: as many are committed as were added.
        sequence.session.commit(work.fed[: run.added], rejected=len(work.fed) - run.added)
        self.pace.decoded(run.added, whole)
        self.speculation.settle(sequence, run.added, len(work.fed), context, seconds)
        self._replied(sequence, run)

    def _replied(self, sequence: Sequence, run: Run) -> None:
        self.tokens_generated += run.added
        if run.ending is not None:
            self._finish(sequence, run.ending)

    def _finish(self, sequence: Sequence, ending: Ending) -> None:
        ending = self._replies.close(sequence, ending)
        if ending.reason != "cancelled":
            self.pace.replied(len(sequence.output))
        if sequence.origin is not None:
            # Before the client hears of the end: its next turn may follow at once.
            sequence.origin.remember(sequence.output, ending.stop_string)
        self._forget(sequence)
        self._emit(finished(sequence, ending))

    def _fail(self, sequence: Sequence, code: str, message: str) -> None:
        self._forget(sequence)
        self._emit(Failed(sequence.request_id, code, message))

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence.request_id)
        del self._sequences[sequence.request_id]
        del self._known[sequence.request_id]
        self.capsules.release(sequence.request_id)
        session, sequence.session = sequence.session, None
        if session is None:
            return
        self.speculation.end(sequence)
        if sequence.conversation is not None:
            self.conversations.ended(
                sequence.conversation, session.tokens, session.addresses(), sequence.turn_start
            )
        session.close()
        if sequence.pin is None:
            self.capsules.turn_ended(sequence.namespace, session.leaf)
