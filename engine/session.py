"""One conversation's committed tokens and the KV blocks that hold them: the only owner of positions.

    position   0 ............ committed ......... room
               │ tokens, KV valid │ nothing there yet │
    blocks     │ b0 │ b1 │ … │ bk │ … │

`committed` is the only truth (I2). What a step wrote past it does not exist: the next step overwrites it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .kv_pool import BlockPool
from .runner import KvGeometry, StateUse, StateWrite


class Session:
    """Tokens whose KV (and recurrent state, where the model has one) is computed, and where it lies."""

    def __init__(self, geometry: KvGeometry, blocks: BlockPool, state_rows: BlockPool) -> None:
        self._geometry = geometry
        self._blocks = blocks
        self._state_rows = state_rows
        self.tokens: list[int] = []
        self.block_table: list[int] = []
        self.state_row: int | None = state_rows.allocate(1)[0] if geometry.state_bytes else None

    @property
    def committed(self) -> int:
        return len(self.tokens)

    @property
    def room(self) -> int:
        """The number of tokens that the block table has space for."""
        return len(self.block_table) * self._geometry.block_tokens

    def blocks_for(self, length: int) -> tuple[int, ...]:
        """The blocks that the first `length` tokens lie in; kernels walk whole tables, so no more than these."""
        return tuple(self.block_table[: self._geometry.blocks_for(length)])

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all. Raises OutOfBlocks and changes nothing."""
        missing = self._geometry.blocks_for(length) - len(self.block_table)
        if missing > 0:
            self.block_table += self._blocks.allocate(missing)

    def state_use(self, count: int) -> StateUse | None:
        """How a step that commits `count` tokens uses the state row: in place."""
        if self.state_row is None:
            return None
        return StateUse(self.state_row, (StateWrite(count, self.state_row),))

    def commit(self, tokens: Sequence[int]) -> None:
        """The step is done: these tokens now exist."""
        assert self.committed + len(tokens) <= self.room, "committed past the reserved room"
        self.tokens += tokens

    def close(self) -> None:
        """Gives all blocks back; the session must not be used afterwards."""
        self._blocks.release(self.block_table)
        self.block_table = []
        self.tokens = []
        if self.state_row is not None:
            self._state_rows.release([self.state_row])
            self.state_row = None
