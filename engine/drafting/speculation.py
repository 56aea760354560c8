"""Speculation for an engine: what all its sequences share, and the calls that the loop makes.

    draft(sequence)      before a decode step: the tokens to verify in it, often none
    settle(sequence, …)  after it: what it gave and how long it took
    interrupted()        after any other step
    end(sequence)        at the end of a request: its tokens are there for the next one's drafts
    idle()               when there is nothing to do: fill the tables of step costs

How it works is in docs/speculation.md.
"""

from __future__ import annotations

from functools import partial

from ..config import EngineConfig
from ..messages.drafts import DraftStats
from ..prefix.block_cache import BlockCache
from ..prefix.integrity import IntegrityCheck
from ..runners.runner import Runner
from ..sequence import Sequence
from .acceptance import AcceptanceRates
from .cost_probe import KeptCosts
from .counts import DraftCounter
from .draft_model import DraftModel
from .drafters import AllowedDrafter, Drafter, ForcedDrafter, HistoryDrafter
from .drafting import Drafting
from .length import best_length
from .memory import DraftMemory
from .model_drafter import ModelDrafters
from .shapes import Shapes

# Tokens of a reply before any was seen, and how much each one moves the average.
_USUAL_REPLY, _REPLY_WEIGHT = 128.0, 0.1


class Speculation:
    """One for each engine, on its thread. `draft_model` drafts too, where there is one."""

    def __init__(
        self, runner: Runner, cache: BlockCache, config: EngineConfig, draft_model: DraftModel | None = None
    ) -> None:
        self._is_on = config.draft_limits.most > 0
        self._least_rows = 2 if config.exact else 1
        self._costs = KeptCosts(runner, cache, config.step_costs_file)
        self._shapes = Shapes(self._costs.table, self._least_rows)
        self._models = ModelDrafters(draft_model, self._costs.table) if draft_model and self._is_on else None
        self._memory = DraftMemory()
        self._rates = AcceptanceRates()
        self._counter = DraftCounter()
        self._reply_tokens = _USUAL_REPLY

    @property
    def stats(self) -> DraftStats:
        """Of all requests so far."""
        return self._counter.stats()

    @property
    def integrity(self) -> tuple[IntegrityCheck, ...]:
        """The checks of the books that are kept here."""
        return (self._models.pool.integrity,) if self._models else ()

    def draft(self, sequence: Sequence) -> tuple[int, ...]:
        """The tokens to feed behind the last known one in the next decode step of a sequence."""
        if not sequence.draft_limit or sequence.session is None:
            return ()
        if sequence.drafting is None:
            # Not earlier, so that the first token need not wait for it.
            sequence.drafting = self._begin(sequence)
        # A step adds one token more than are drafted.
        most = min(sequence.draft_limit, sequence.max_new_tokens - len(sequence.output) - 1)
        most = sequence.session.room_for_drafts(most)
        pays = partial(
            best_length,
            costs=self._costs.table,
            context=sequence.committed,
            least_rows=self._least_rows,
            extra=partial(self._shapes.extra, context=sequence.committed),
        )
        return sequence.drafting.draft(most, pays, self._to_come(sequence))

    def settle(self, sequence: Sequence, count: int, fed: int, context: int, seconds: float) -> None:
        """A decode step that fed `fed` tokens behind `context` others gave `count` and took `seconds`."""
        self._shapes.ran(max(fed, self._least_rows), context, seconds)
        if sequence.drafting is not None:
            sequence.drafting.settle(sequence.output[-count:])

    def interrupted(self) -> None:
        """A step was run that was no decode step."""
        self._shapes.interrupted()

    def end(self, sequence: Sequence) -> None:
        """Keeps what was new to the namespace: tool results and other new text of the prompt, and the reply."""
        if not sequence.draft_limit or sequence.pin is not None:
            return
        self._reply_tokens += _REPLY_WEIGHT * (len(sequence.output) - self._reply_tokens)
        self._memory.learn(sequence.namespace, (*sequence.prompt[sequence.cached_tokens :], *sequence.output))
        if sequence.drafting is not None:
            sequence.drafting.close()
            self._memory.give_back(sequence.namespace, sequence.drafting.text)

    def idle(self) -> bool:
        """Measures one more step cost. False when there is nothing to measure; then the tables are on disk."""
        self.interrupted()
        return any(costs.measure_some() for costs in self._kept_costs())

    def save(self) -> None:
        """Writes the tables of step costs, where they have a file."""
        for costs in self._kept_costs():
            costs.save()

    def _kept_costs(self) -> tuple[KeptCosts, ...]:
        if not self._is_on:
            return ()
        return (self._costs, self._models.pool.costs) if self._models else (self._costs,)

    def _to_come(self, sequence: Sequence) -> int:
        """About how many tokens a reply still has: up to the usual length, and then as many as it has so far."""
        written = len(sequence.output)
        return min(sequence.max_new_tokens - written, max(int(self._reply_tokens) - written, written))

    def _begin(self, sequence: Sequence) -> Drafting:
        namespace, grammar = sequence.namespace, sequence.sampler.grammar
        text = self._memory.borrow(namespace, (*sequence.prompt, *sequence.output))
        drafters: tuple[Drafter, ...] = (HistoryDrafter(text, self._memory.past(namespace)),)
        if grammar is not None:
            drafters = (ForcedDrafter(grammar.forced), AllowedDrafter(drafters[0], grammar.allows))
        counter = DraftCounter(self._counter)
        drafting = Drafting(text, drafters, AcceptanceRates(self._rates), counter)
        if self._models is not None:
            drafting.model = self._models.begin(sequence, text)
        return drafting
