"""Fills the table of step costs while the worker has nothing else to do."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ..prefix.block_cache import BlockCache
from ..runners.runner import Runner, SequenceSlice, StateUse, StateWrite, StepPlan
from .step_costs import ROWS, StepCosts, context_of

_LOG = logging.getLogger(__name__)
# Runs of a cell. The first one sets up what depends on the shape: that is what a change of the shape costs.
_RUNS = 4


class CostProbe:
    """Measures one step at a time, so that a request that comes waits for that one and no more.

    Each cell is measured once in a worker's life; one that was kept from an earlier life is corrected. Only blocks that
    hold something are read: untouched pages of the pool are all the same page, and would make a long context look cheap. So longer contexts are measured once the pool was filled that far. What they hold is of
    no matter, and nothing is written but a block (and a state row) that is free.
    """

    def __init__(self, runner: Runner, cache: BlockCache, costs: StepCosts) -> None:
        self._runner = runner
        self._cache = cache
        self._costs = costs
        self._bucket, self._row = 0, 0
        self._seconds: list[float] = []
        # Whether something was measured that is not on disk.
        self.is_dirty = False

    def measure_some(self) -> bool:
        """Runs a step of the next cell. False when there is none, or no room for it now."""
        rows, context = ROWS[self._row], context_of(self._bucket)
        plan = self._plan(rows, context)
        if plan is None:
            return False
        begun = time.perf_counter()
        self._runner.forward(plan)
        self._seconds.append(time.perf_counter() - begun)
        if len(self._seconds) == _RUNS:
            least = min(self._seconds[1:])
            self._costs.observe(rows, context, least)
            self._costs.observe_change(self._seconds[0] - least)
            self._seconds, self.is_dirty = [], True
            carry, self._row = divmod(self._row + 1, len(ROWS))
            self._bucket += carry
        return True

    def _plan(self, rows: int, context: int) -> StepPlan | None:
        """A step that reads blocks that others know and writes to free ones; None without such blocks.

        They are free again when this returns, and nobody takes them before the step has run.
        """
        blocks, size = self._cache.blocks, self._runner.geometry.block_tokens
        read = context // size
        if not blocks.free or read >= blocks.size or (self._bucket and read > blocks.size - blocks.free):
            return None
        (scratch,) = blocks.allocate(1)
        blocks.release([scratch])
        table = [block for block in range(read + 1) if block != scratch][:read]
        tokens, state = (0,) * rows, None
        if self._runner.geometry.state_bytes:
            if not self._cache.state_rows.free:
                return None
            (row,) = self._cache.state_rows.allocate(1)
            self._cache.state_rows.release([row])
            state = StateUse(row, (StateWrite(rows, row),))
        return StepPlan((SequenceSlice(tokens, context, (*table, scratch), tuple(range(rows)), state),))


class KeptCosts:
    """The table of step costs of one runner: filled while there is nothing to do, kept in `file`, if anywhere."""

    def __init__(self, runner: Runner, cache: BlockCache, file: Path | None) -> None:
        self.table = StepCosts() if file is None else StepCosts.load(file)
        self._probe = CostProbe(runner, cache, self.table)
        self._file = file

    def measure_some(self) -> bool:
        """Runs one step. False when there is nothing to measure; then the table is on disk."""
        if self._probe.measure_some():
            return True
        if self._probe.is_dirty:
            self.save()
        return False

    def save(self) -> None:
        """Writes the table; a full disk costs a later start some time."""
        self._probe.is_dirty = False
        if self._file is None:
            return
        try:
            self.table.save(self._file)
        except OSError as error:
            _LOG.warning("step costs are not kept: %s", error.strerror)
