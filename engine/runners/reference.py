"""A deterministic model without weights, in NumPy: the runner that tests of everything above the engine use.

A two-layer transformer with random weights (fixed seed), paged KV and a small recurrent state, computed token by
token, so that each row depends on its own prefix and on nothing else: the same bits for any grouping into steps.
It is slow per token and quick to start. Its text means nothing.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from .runner import KvGeometry, Logits, SequenceSlice, StateUse, StepPlan

Array = NDArray[np.float32]

HIDDEN, LAYERS, HEADS, HEAD_DIM, BLOCK_TOKENS = 32, 2, 2, 8, 32
_KV = HEADS * HEAD_DIM
_DECAY = np.float32(0.9)
_END_OF_TURN_LOGIT = 1.0


class _Layer:
    def __init__(self, random: np.random.Generator) -> None:
        scale = HIDDEN**-0.5
        self.query, self.key, self.value = (
            (random.standard_normal((_KV, HIDDEN)) * scale * 2).astype(np.float32) for _ in range(3)
        )
        self.output = (random.standard_normal((HIDDEN, _KV)) * 0.5).astype(np.float32)
        self.mix = (random.standard_normal((HIDDEN, HIDDEN)) * scale).astype(np.float32)


class ReferenceRunner:
    """Implements `Runner`. `step_seconds` makes each step take that long, for tests of queues and cancels."""

    def __init__(
        self, vocab_size: int, likely: NDArray[np.int64], end_of_turn: int, step_seconds: float = 0.0
    ):
        random = np.random.default_rng(20260101)
        self._layers = [_Layer(random) for _ in range(LAYERS)]
        self._embedding = random.standard_normal((vocab_size, HIDDEN)).astype(np.float32)
        self._head = (random.standard_normal((vocab_size, HIDDEN)) * 0.7).astype(np.float32)
        self._bias = np.full(vocab_size, -20.0, np.float32)
        self._bias[likely] = 0.0
        self._bias[end_of_turn] = _END_OF_TURN_LOGIT
        self._step_seconds = step_seconds
        self._kv = np.zeros((0, LAYERS, 2, BLOCK_TOKENS, _KV), np.float32)
        self._states = np.zeros((0, HIDDEN), np.float32)

    @property
    def geometry(self) -> KvGeometry:
        return KvGeometry(BLOCK_TOKENS, LAYERS * 2 * BLOCK_TOKENS * _KV * 4, HIDDEN * 4)

    @property
    def vocab_size(self) -> int:
        return len(self._bias)

    @property
    def parameters(self) -> int:
        per_layer = 3 * _KV * HIDDEN + HIDDEN * _KV + HIDDEN * HIDDEN
        return LAYERS * per_layer + self._embedding.size + self._head.size + self._bias.size

    def allocate(self, blocks: int, state_rows: int) -> None:
        self._kv = np.zeros((blocks, *self._kv.shape[1:]), np.float32)
        self._states = np.zeros((state_rows, HIDDEN), np.float32)

    def forward(self, plan: StepPlan) -> Logits:
        if self._step_seconds:
            time.sleep(self._step_seconds)
        rows = [row for part in plan.slices for row in self._run(part)]
        return np.array(rows, np.float32).reshape(-1, self.vocab_size)

    def _run(self, part: SequenceSlice) -> list[Array]:
        assert part.state is not None, "the reference model has recurrent state"
        table = np.array(part.block_table, np.int64)
        state = self._states[part.state.read].copy()
        rows = []
        for index, token in enumerate(part.tokens):
            hidden, state = self._token(token, part.past + index, table, state)
            self._store(part.state, index + 1, state)
            if index in part.rows:
                rows.append(self._head @ hidden + self._bias)
        return rows

    def _store(self, use: StateUse, done: int, state: Array) -> None:
        for write in use.writes:
            if write.after == done:
                self._states[write.row] = state

    def _token(
        self, token: int, position: int, table: NDArray[np.int64], state: Array
    ) -> tuple[Array, Array]:
        state = _DECAY * state + (1 - _DECAY) * self._embedding[token]
        hidden = self._embedding[token] + np.sin(position / (1 + np.arange(HIDDEN, dtype=np.float32)))
        for index, layer in enumerate(self._layers):
            keys, values = self._extend(index, layer, hidden, position, table)
            attended = _attend(layer.query @ hidden, keys, values)
            hidden = hidden + layer.output @ attended
            hidden = hidden + np.tanh(layer.mix @ (hidden + state))
            hidden = hidden / np.sqrt(np.mean(hidden**2) + np.float32(1e-6))
        return hidden + state, state

    def _extend(
        self, index: int, layer: _Layer, hidden: Array, position: int, table: NDArray[np.int64]
    ) -> tuple[Array, Array]:
        """Writes the token's key and value, returns those of all tokens so far, [position + 1, _KV] each."""
        block, offset = table[position // BLOCK_TOKENS], position % BLOCK_TOKENS
        self._kv[block, index, 0, offset] = layer.key @ hidden
        self._kv[block, index, 1, offset] = layer.value @ hidden
        used = table[: position // BLOCK_TOKENS + 1]
        both = self._kv[used, index].transpose(1, 0, 2, 3).reshape(2, -1, _KV)[:, : position + 1]
        return both[0], both[1]

    def copy_block(self, source: int, target: int) -> None:
        self._kv[target] = self._kv[source]

    def read_block(self, block: int) -> bytes:
        return bytes(self._kv[block])

    def write_block(self, block: int, data: bytes) -> None:
        self._kv[block] = np.frombuffer(data, np.float32).reshape(self._kv.shape[1:])

    def clear_state(self, row: int) -> None:
        self._states[row] = 0.0

    def copy_state(self, source: int, target: int) -> None:
        self._states[target] = self._states[source]

    def read_state(self, row: int) -> bytes:
        return bytes(self._states[row])

    def write_state(self, row: int, data: bytes) -> None:
        self._states[row] = np.frombuffer(data, np.float32).reshape(HIDDEN)


def _attend(query: Array, keys: Array, values: Array) -> Array:
    """Softmax attention per head; query [_KV], keys and values [tokens, _KV]."""
    split = (-1, HEADS, HEAD_DIM)
    scores = np.einsum("hd,thd->ht", query.reshape(HEADS, HEAD_DIM), keys.reshape(split)) / np.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    attended: Array = np.einsum("ht,thd->hd", weights, values.reshape(split)).reshape(-1).astype(np.float32)
    return attended
