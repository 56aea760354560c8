"""Draft models for the reference model: one that says what it says, and one that says something else."""

from __future__ import annotations

import numpy as np
from agentserve.engine.drafting.draft_model import DraftModel
from agentserve.engine.prefix.block_cache import BlockCache
from agentserve.engine.protocol import LoadModel
from agentserve.engine.runners.reference import BLOCK_TOKENS
from agentserve.engine.runners.reference_model import open_reference
from agentserve.engine.runners.runner import (
    KvGeometry,
    Logits,
    SequenceSlice,
    Stateless,
    StateUse,
    StateWrite,
    StepPlan,
)
from numpy.typing import NDArray

Row = NDArray[np.float32]


class TwinRunner(Stateless):
    """Implements `Runner`: the reference model without rows of recurrent state.

    It remembers the state after each text that it computed, and finds it by the tokens that lie in its blocks: with a
    block of somebody else, or a token at a wrong place, it says something else. `stubborn`: it does so always.
    """

    def __init__(self, stubborn: bool = False) -> None:
        self._reference = open_reference(LoadModel("reference", None)).runner
        self._stubborn = stubborn
        self._tokens = np.zeros((0, BLOCK_TOKENS), np.int64)
        self._states: dict[bytes, bytes] = {}
        self.vocab_size = self._reference.vocab_size
        self.steps: list[int] = []

    @property
    def geometry(self) -> KvGeometry:
        return KvGeometry(BLOCK_TOKENS, self._reference.geometry.block_bytes)

    def allocate(self, blocks: int, state_rows: int) -> None:
        self._reference.allocate(blocks, 1)
        self._tokens = np.zeros((blocks, BLOCK_TOKENS), np.int64)
        self._states[b""] = bytes(self._reference.geometry.state_bytes)

    def forward(self, plan: StepPlan) -> Logits:
        rows = [row for part in plan.slices for row in self._run(part)]
        logits = np.array(rows, np.float32).reshape(-1, self.vocab_size)
        return -logits if self._stubborn else logits

    def _run(self, part: SequenceSlice) -> list[Row]:
        self.steps.append(len(part.tokens))
        table, rows = np.array(part.block_table, np.int64), []
        known = self._tokens[table].reshape(-1)[: part.past].tobytes()
        self._reference.write_state(0, self._states.get(known, self._states[b""]))
        for index, token in enumerate(part.tokens):
            position = part.past + index
            self._tokens[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token
            state = StateUse(0, (StateWrite(1, 0),))
            one = SequenceSlice((token,), position, part.block_table, (0,), state)
            row = self._reference.forward(StepPlan((one,)))[0]
            known = self._tokens[table].reshape(-1)[: position + 1].tobytes()
            self._states[known] = self._reference.read_state(0)
            if index in part.rows:
                rows.append(row)
        return rows

    def copy_block(self, source: int, target: int) -> None:
        self._reference.copy_block(source, target)
        self._tokens[target] = self._tokens[source]

    def read_block(self, block: int) -> bytes:
        return self._reference.read_block(block)

    def write_block(self, block: int, data: bytes) -> None:
        self._reference.write_block(block, data)


def draft_model(
    runner: TwinRunner,
    blocks: int = 100,
    context: int = 1024,
    share: float = 0.1,
    ends: frozenset[int] = frozenset(),
) -> DraftModel:
    """A draft model with its pool, for one engine."""
    runner.allocate(blocks, 0)
    cache = BlockCache("draft", blocks, 0, BLOCK_TOKENS)
    return DraftModel(runner, cache, context, runner.vocab_size, runner.vocab_size, share, ends)
