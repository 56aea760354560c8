"""The seam between the engine and a device: what a step computes, and who owns the buffers.

A runner holds weights and KV blocks and nothing else. It knows no request, no session and no token text;
which block belongs to whom is decided by `kv_pool`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Size of the cached state: tokens in a block, bytes of a block over all layers, bytes of a state row.

    A state row is the recurrent state at one position; `state_bytes` is 0 for models without one.
    """

    block_tokens: int
    block_bytes: int
    state_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        return self.block_bytes // self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class StateWrite:
    """Stores the recurrent state after the first `after` tokens of a slice into row `row`."""

    after: int
    row: int


@dataclass(frozen=True, slots=True)
class StateUse:
    """The recurrent state of a slice: the row that holds it after `past` tokens, and what to store on the way.

    Row `read` may be written too; rows are read before any is written.
    """

    read: int
    writes: tuple[StateWrite, ...]


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The part of one sequence that a step computes.

    `tokens` stand at positions `past` … `past + len(tokens) - 1`; the KV of `past` earlier tokens lies in
    `block_table`, which also has room for the new ones. `rows` are the indices into `tokens` whose logits
    are wanted, ascending; often just the last, in prefill often none. `state` is None for models without
    recurrent state.
    """

    tokens: tuple[int, ...]
    past: int
    block_table: tuple[int, ...]
    rows: tuple[int, ...]
    state: StateUse | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass over one or several sequences."""

    slices: tuple[SequenceSlice, ...]

    @property
    def total_rows(self) -> int:
        return sum(len(s.rows) for s in self.slices)


class Runner(Protocol):
    """Computes steps on one device. Exactly one thread may call it."""

    @property
    def geometry(self) -> KvGeometry:
        """Fixed after loading."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def allocate(self, blocks: int, state_rows: int) -> None:
        """Makes room for KV blocks and state rows, once, before the first step. Raises MemoryError."""
        ...

    def forward(self, plan: StepPlan) -> Logits:
        """Writes the KV of the plan's tokens and returns float32 logits [plan.total_rows, vocab_size].

        Rows come in the order of slices and, inside one, of `rows`. The array is a view that is valid until
        the next call. KV at positions before `past` is only read.
        """
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copies all layers of one KV block; afterwards both hold the same bytes."""
        ...

    def read_block(self, block: int) -> bytes:
        """The block's bytes over all layers, `geometry.block_bytes` long."""
        ...

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces the block's bytes. Raises ValueError when the length is wrong."""
        ...

    def clear_state(self, row: int) -> None:
        """Makes a state row that of an empty sequence. A row is read even when `past` is 0."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copies a state row onto another one."""
        ...

    def read_state(self, row: int) -> bytes:
        """The row's bytes, `geometry.state_bytes` long."""
        ...

    def write_state(self, row: int, data: bytes) -> None:
        """Replaces the row's bytes. Raises ValueError when the length is wrong."""
        ...


class Stateless:
    """The part of a `Runner` that a model without recurrent state is never asked for."""

    def clear_state(self, row: int) -> None:
        raise AssertionError("this model has no recurrent state")

    def copy_state(self, source: int, target: int) -> None:
        raise AssertionError("this model has no recurrent state")

    def read_state(self, row: int) -> bytes:
        raise AssertionError("this model has no recurrent state")

    def write_state(self, row: int, data: bytes) -> None:
        raise AssertionError("this model has no recurrent state")
