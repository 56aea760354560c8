"""Speculation for an engine: what all its sequences share, and the calls that the loop makes.

    draft(sequence)      before a decode step: the tokens to verify in it, often none
    settle(sequence, …)  after it: what it gave and how long it took
    end(sequence)        at the end of a request: its tokens are there for the next one's drafts
    idle()               when there is nothing to do: fill the table of step costs

How it works is in docs/speculation.md.
"""

from __future__ import annotations

import logging
from functools import partial

from ..config import EngineConfig
from ..messages.drafts import DraftStats
from ..prefix.block_cache import BlockCache
from ..runners.runner import Runner
from ..sequence import Sequence
from .acceptance import AcceptanceRates
from .cost_probe import CostProbe
from .counts import DraftCounter
from .drafters import AllowedDrafter, Drafter, ForcedDrafter, HistoryDrafter
from .drafting import Drafting
from .length import draft_length
from .memory import DraftMemory
from .step_costs import StepCosts

_LOG = logging.getLogger(__name__)


class Speculation:
    """One for each engine, on its thread."""

    def __init__(self, runner: Runner, cache: BlockCache, config: EngineConfig) -> None:
        self._is_on = config.draft_limits.most > 0
        self._least_rows = 2 if config.exact else 1
        self._costs_file = file = config.step_costs_file
        self._costs = StepCosts() if file is None else StepCosts.load(file)
        self._probe = CostProbe(runner, cache, self._costs)
        self._memory = DraftMemory()
        self._rates = AcceptanceRates()
        self._counter = DraftCounter()

    @property
    def stats(self) -> DraftStats:
        """Of all requests so far."""
        return self._counter.stats()

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
            draft_length, costs=self._costs, context=sequence.committed, least_rows=self._least_rows
        )
        return sequence.drafting.draft(most, pays)

    def settle(self, sequence: Sequence, count: int, fed: int, context: int, seconds: float) -> None:
        """A decode step that fed `fed` tokens behind `context` others gave `count` and took `seconds`."""
        self._costs.observe(max(fed, self._least_rows), context, seconds)
        if sequence.drafting is not None:
            sequence.drafting.settle(sequence.output[-count:])

    def end(self, sequence: Sequence) -> None:
        """Keeps what was new to the namespace: tool results and other new text of the prompt, and the reply."""
        if not sequence.draft_limit or sequence.pin is not None:
            return
        self._memory.learn(sequence.namespace, (*sequence.prompt[sequence.cached_tokens :], *sequence.output))
        if sequence.drafting is not None:
            self._memory.give_back(sequence.namespace, sequence.drafting.text)

    def idle(self) -> bool:
        """Measures one more step cost. False when there is nothing to measure; then the table is on disk."""
        if self._is_on and self._probe.measure_some():
            return True
        if self._probe.is_dirty:
            self.save()
        return False

    def save(self) -> None:
        """Writes the table of step costs, where it has a file; a full disk costs a later start some time."""
        self._probe.is_dirty = False
        if self._costs_file is None or not self._is_on:
            return
        try:
            self._costs.save(self._costs_file)
        except OSError as error:
            _LOG.warning("step costs are not kept: %s", error.strerror)

    def _begin(self, sequence: Sequence) -> Drafting:
        text = self._memory.borrow(sequence.namespace, (*sequence.prompt, *sequence.output))
        drafters: tuple[Drafter, ...] = (HistoryDrafter(text, self._memory.past(sequence.namespace)),)
        if (grammar := sequence.sampler.grammar) is not None:
            drafters = (ForcedDrafter(grammar.forced), AllowedDrafter(drafters[0], grammar.allows))
        counter = DraftCounter(self._counter)
        return Drafting(text, drafters, AcceptanceRates(self._rates), counter)
