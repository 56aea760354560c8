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
    """Size of the KV cache: tokens in a block, bytes of a block over all layers."""

    block_tokens: int
    block_bytes: int

    @property
    def token_bytes(self) -> int:
        return self.block_bytes // self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The part of one sequence that a step computes.

    `tokens` stand at positions `past` … `past + len(tokens) - 1`; the KV of `past` earlier tokens lies in
    `block_table`, which also has room for the new ones. `rows` are the indices into `tokens` whose logits
    are wanted, ascending; often just the last, in prefill often none.
    """

    tokens: tuple[int, ...]
    past: int
    block_table: tuple[int, ...]
    rows: tuple[int, ...]


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

    def allocate(self, blocks: int) -> None:
        """Makes room for `blocks` KV blocks, once, before the first step. Raises MemoryError."""
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
