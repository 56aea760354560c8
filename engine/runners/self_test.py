"""The load-time self-test: does this machine compute what prefix reuse and speculation rely on?

Three properties, on 64 tokens with real weights: a row's logits do not depend on how many rows (from 2 up) a step
has; a KV block that was read and written back gives the same bits; rejected tokens leave no trace once the length
is cut back. A machine that fails one is served all the same, and says so in `status`.
"""

from __future__ import annotations

import time

import numpy as np

from ..protocol import SelfTest
from .runner import Logits, Runner, SequenceSlice, StateUse, StateWrite, StepPlan

_TOKENS, _PAST = 64, 60


class _Probe:
    """A sequence in the first blocks of the pool; state rows 0 and 1, where the model has them."""

    def __init__(self, runner: Runner) -> None:
        random = np.random.default_rng(7)
        self._runner = runner
        self._blocks = tuple(range(runner.geometry.blocks_for(_TOKENS)))
        self._has_state = runner.geometry.state_bytes > 0
        self.tokens = tuple(int(t) for t in random.integers(0, runner.vocab_size, _TOKENS))
        self.garbage = tuple(int(t) for t in random.integers(0, runner.vocab_size, _TOKENS - _PAST))

    def prefill(self) -> None:
        if self._has_state:
            self._runner.clear_state(0)
        state = StateUse(0, (StateWrite(_PAST, 0),)) if self._has_state else None
        part = SequenceSlice(self.tokens[:_PAST], 0, self._blocks, (), state)
        self._runner.forward(StepPlan((part,)))

    def two_rows(self, tokens: tuple[int, ...]) -> Logits:
        """Feeds `tokens` behind the prefix, without keeping them, and returns the first two rows."""
        state = StateUse(0, (StateWrite(len(tokens), 1),)) if self._has_state else None
        part = SequenceSlice(tokens, _PAST, self._blocks, (0, 1), state)
        return self._runner.forward(StepPlan((part,))).copy()

    def replace_with_copy(self) -> None:
        for block in self._blocks:
            saved = self._runner.read_block(block)
            self._runner.write_block(block, bytes(len(saved)))
            self._runner.write_block(block, saved)


def run_self_test(runner: Runner) -> SelfTest:
    """Runs on an allocated runner with an unused pool; leaves garbage in its first blocks."""
    begun = time.perf_counter()
    probe = _Probe(runner)
    probe.prefill()
    two = probe.two_rows(probe.tokens[_PAST : _PAST + 2])
    four = probe.two_rows(probe.tokens[_PAST:])
    probe.two_rows(probe.garbage)
    rolled_back = probe.two_rows(probe.tokens[_PAST : _PAST + 2])
    probe.replace_with_copy()
    replayed = probe.two_rows(probe.tokens[_PAST : _PAST + 2])
    return SelfTest(
        rows_agree=np.array_equal(two, four),
        replay_agrees=np.array_equal(two, replayed),
        rollback_agrees=np.array_equal(two, rolled_back),
        seconds=time.perf_counter() - begun,
    )
