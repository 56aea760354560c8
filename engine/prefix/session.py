"""The committed tokens of a running sequence and the KV blocks that hold them: the only owner of positions.

    position   0 ............ committed ......... room
               │ tokens, KV valid │ nothing there yet │
    blocks     │ b0 │ b1 │ … │ bk │ … │
               shared, immutable ↑ private

`committed` is the only truth (I2). What a step wrote past it does not exist: the next step overwrites it. A block
becomes known to everybody the moment it is full, so an aborted prompt is still there for its retry.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..runners.runner import KvGeometry, Runner, StateUse, StateWrite
from .block_cache import BlockCache, Match, Node
from .kv_pool import OutOfBlocks


class Session:
    """Tokens whose KV (and recurrent state, where the model has one) is computed, and where it lies.

    Blocks that lie wholly within the first `keep_longest` tokens are evicted last. Raises OutOfBlocks when the
    model has recurrent state and all of its rows are held by others.
    """

    def __init__(
        self, cache: BlockCache, geometry: KvGeometry, namespace: str, keep_longest: int = 0
    ) -> None:
        self._cache = cache
        self._geometry = geometry
        self._keep_longest = keep_longest
        # The last full block that is known, or the empty prefix, and how many tokens there are up to its end.
        self._leaf = cache.root(namespace)
        self._published = 0
        # Checkpoints whose block is not full yet: length and row.
        self._pending_states: list[tuple[int, int]] = []
        # Rows for the states after each token of a step that verifies a draft; held on to, to be used again.
        self._draft_rows: list[int] = []
        self.tokens: list[int] = []
        self.block_table: list[int] = []
        self.state_row: int | None = None
        if geometry.state_bytes:
            self.state_row = cache.take_state_row()
            if self.state_row is None:
                raise OutOfBlocks(1, 0)

    @property
    def committed(self) -> int:
        return len(self.tokens)

    @property
    def leaf(self) -> Node:
        """The last block that is known; after `close` that of the last token. The root when there is none."""
        return self._leaf

    def addresses(self) -> tuple[bytes, ...]:
        """Those of the whole blocks that are known, from the first on."""
        return tuple(node.key for node in self._leaf.path())

    @property
    def room(self) -> int:
        """The number of tokens that the block table has space for."""
        return len(self.block_table) * self._geometry.block_tokens

    @property
    def state_rows(self) -> list[int]:
        """All rows of recurrent state that this session holds."""
        held = [*(row for _, row in self._pending_states), *self._draft_rows]
        return held if self.state_row is None else [*held, self.state_row]

    def room_for_drafts(self, wanted: int) -> int:
        """How many drafted tokens a step can take back: all that are wanted, or as many as there are state rows."""
        if self.state_row is None:
            return wanted
        while len(self._draft_rows) < wanted and (row := self._cache.take_state_row()) is not None:
            self._draft_rows.append(row)
        return min(wanted, len(self._draft_rows))

    def blocks_for(self, length: int) -> tuple[int, ...]:
        """The blocks that the first `length` tokens lie in; kernels walk whole tables, so no more than these."""
        return tuple(self.block_table[: self._geometry.blocks_for(length)])

    def begin(self, match: Match, room: int, runner: Runner) -> None:
        """Takes over a known prefix and makes room for `room` tokens in all. Raises OutOfBlocks, changing nothing.

        Whole blocks are shared. The block that the prefix ends in is copied, as this session will write to it.
        """
        assert not self.tokens, "a session begins once"
        shared = [node.block for node in match.nodes]
        copied = [] if match.tail is None else [match.tail.block]
        # Held before allocating: an eviction must not take what is about to be used.
        self._cache.blocks.retain([*shared, *copied])
        try:
            private = self._cache.blocks.allocate(self._geometry.blocks_for(room) - len(shared))
        except OutOfBlocks:
            self._cache.blocks.release([*copied, *reversed(shared)])
            raise
        for block in copied:
            runner.copy_block(block, private[0])
        self._cache.blocks.release(copied)
        self.block_table = [*shared, *private]
        self._take_over(match, runner)

    def grow(self, blocks: int) -> None:
        """Makes room for the tokens of so many more blocks. Raises OutOfBlocks, changing nothing."""
        self.block_table += self._cache.blocks.allocate(blocks)

    def _take_over(self, match: Match, runner: Runner) -> None:
        self.tokens = [token for node in match.nodes for token in node.tokens]
        if match.tail is not None:
            self.tokens += match.tail.tokens[: match.part]
        if match.nodes:
            self._leaf = match.nodes[-1]
            self._published = len(match.nodes) * self._geometry.block_tokens
        if self.state_row is not None and match.state_row is not None:
            runner.copy_state(match.state_row, self.state_row)
        elif self.state_row is not None:
            runner.clear_state(self.state_row)

    def state_use(self, count: int, drafted: int = 0) -> StateUse | None:
        """How a step of `count` tokens uses the state rows; all but the first may be `drafted` ones.

        The state after the last token replaces the one that was read; those after tokens before a drafted one get
        rows of their own, so that `commit` chooses a row and copies nothing.
        """
        assert drafted in {0, count - 1}, "drafted tokens stand behind one that is certain"
        if self.state_row is None:
            return None
        rows = [*self._draft_rows[:drafted], self.state_row]
        return StateUse(self.state_row, tuple(StateWrite(count - drafted + i, r) for i, r in enumerate(rows)))

    def commit(self, tokens: Sequence[int], rejected: int = 0) -> None:
        """The step is done: these tokens now exist, and blocks that became full are known to everybody.

        `rejected` tokens that the step had computed behind them do not.
        """
        assert self.committed + len(tokens) <= self.room, "committed past the reserved room"
        if rejected and self.state_row is not None:
            last = len(tokens) - 1
            self.state_row, self._draft_rows[last] = self._draft_rows[last], self.state_row
        self.tokens += tokens
        size = self._geometry.block_tokens
        while self._published + size <= self.committed:
            self._publish_block()
        self._publish_states(self._published)

    def checkpoint(self, runner: Runner) -> None:
        """Stores the recurrent state at the committed length, if the model has one and a row is to be had."""
        if self.state_row is None or not self.tokens:
            return
        row = self._cache.take_state_row()
        if row is not None:
            runner.copy_state(self.state_row, row)
            self._pending_states.append((self.committed, row))
            self._publish_states(self._published)

    def close(self) -> None:
        """Gives everything back. What was computed stays known until its blocks are needed."""
        if self.state_row is not None:
            self._pending_states.append((self.committed, self.state_row))
            self.state_row = None
        self._publish_tail()
        self._publish_states(self.committed)
        self._cache.state_rows.release([*(row for _, row in self._pending_states), *self._draft_rows])
        # From the end: what lies deeper is of less use and is evicted first.
        self._cache.blocks.release(reversed(self.block_table))
        self._pending_states, self._draft_rows, self.block_table, self.tokens = [], [], [], []

    def _publish_block(self) -> None:
        start, end = self._published, self._published + self._geometry.block_tokens
        index = start // self._geometry.block_tokens
        own = self.block_table[index]
        node = self._cache.insert(self._leaf, tuple(self.tokens[start:end]), own, end <= self._keep_longest)
        if node.block != own:
            # Somebody computed the same meanwhile: one copy is enough.
            self._cache.blocks.retain([node.block])
            self._cache.blocks.release([own])
            self.block_table[index] = node.block
        self._leaf, self._published = node, end

    def _publish_tail(self) -> None:
        rest = tuple(self.tokens[self._published :])
        if rest:
            block = self.block_table[self._published // self._geometry.block_tokens]
            self._leaf = self._cache.insert_tail(self._leaf, rest, block)

    def _publish_states(self, known: int) -> None:
        """Hands checkpoints over to the blocks that are known by now, which end at `known` tokens."""
        if not self._pending_states:
            return
        path = self._leaf.path()
        for length, row in [item for item in self._pending_states if item[0] <= known]:
            self._pending_states.remove((length, row))
            holder = next((node for node in path if node.start < length <= node.end), None)
            if holder is None:
                self._cache.state_rows.release([row])
            else:
                self._cache.store_state(holder, length - holder.start, row)
