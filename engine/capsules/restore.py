"""Brings what a prompt needs from the disk into the pool, where it then is like anything computed here.

    prompt   │ b0 │ b1 │ b2 │ b3 │ b4 … │ rest
    pool     ├────┴────┤                             known: only held meanwhile
    disk               ├────┴────┴──────┴──┤         read, verified, put into the index

Nothing is read when it would not make the reusable prefix longer. A block that fails its check ends the restore: what
was read before it is used, and the rest is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..prefix.block_cache import BlockCache, Match, Node, Tokens, address, common
from ..runners.runner import Runner
from .disk import CapsuleDisk, StoredBlock
from .files import CapsuleError


class _Step(NamedTuple):
    """A block of the prompt: in the pool, on disk, or both; `part` of its tokens are the prompt's."""

    node: Node | None
    stored: StoredBlock | None
    part: int

    def states(self) -> Iterator[int]:
        """The offsets whose state is to be had, where the prompt has the same tokens up to there."""
        for offset in {
            *(self.node.states if self.node else ()),
            *(self.stored.states if self.stored else ()),
        }:
            if offset <= self.part:
                yield offset


@dataclass(slots=True)
class Restorer:
    """Restores into one pool from one folder. Only the engine thread calls it."""

    cache: BlockCache
    disk: CapsuleDisk
    runner: Runner
    _held: list[int] = field(default_factory=list)

    def restore(self, namespace: str, prompt: Sequence[int], most: int) -> int:
        """Makes the longest prefix of `most` tokens at most usable that pool and disk hold together.

        Returns how many tokens more can be reused than before; 0 when the disk has nothing to add, or the pool
        no room.
        """
        self.disk.collect()
        if not len(self.disk):
            return 0
        known = self.cache.longest(namespace, prompt)
        before = self.cache.usable(known, most).length
        steps = self._reachable(namespace, prompt, known)
        end = self._usable_end(steps, most)
        if end <= before:
            return 0
        try:
            self._load(self.cache.root(namespace), steps, end)
        finally:
            # From the end: what lies deeper is evicted first.
            self.cache.blocks.release(reversed(self._held))
            self._held.clear()
        self.disk.touch(step.stored for step in reversed(steps) if step.stored is not None)
        return self.cache.match(namespace, prompt, most).length - before

    def _reachable(self, namespace: str, prompt: Sequence[int], known: Match) -> list[_Step]:
        size = _size(self.disk)
        key, steps = self.cache.root(namespace).key, list[_Step]()
        for start in range(0, len(prompt) - size + 1, size):
            node = known.nodes[len(steps)] if len(steps) < len(known.nodes) else None
            tokens = tuple(prompt[start : start + size])
            following = node.key if node is not None else address(key, tokens)
            stored = self.disk.find(key, following, tokens)
            if node is None and stored is None:
                break
            steps.append(_Step(node, stored, size))
            key = following
        last = self._nearest(key, prompt[len(steps) * size : (len(steps) + 1) * size])
        return steps if last is None else [*steps, last]

    def _nearest(self, key: bytes, rest: Sequence[int]) -> _Step | None:
        """The stored block behind `key` that is of most use for the rest of the prompt: by its last state, if the
        model has any, then by what both share."""
        steps = (_Step(None, block, common(block.tokens, rest)) for block in self.disk.following(key))
        best = max(steps, key=lambda step: (max(step.states(), default=0), step.part), default=None)
        return best if best is not None and best.part else None

    def _usable_end(self, steps: list[_Step], most: int) -> int:
        """Where the prefix that could be reused ends, in tokens."""
        size = _size(self.disk)
        if not self.disk.geometry.state_bytes:
            return min(most, sum(step.part for step in steps))
        ends = (i * size + offset for i, step in enumerate(steps) for offset in step.states())
        return max((end for end in ends if end <= most), default=0)

    def _load(self, parent: Node, steps: list[_Step], end: int) -> None:
        size = _size(self.disk)
        for index, step in enumerate(steps[: -(-end // size)]):
            offset = min(end - index * size, step.part)
            is_last = (index + 1) * size >= end
            node = self._node(parent, step)
            if node is None:
                return
            if is_last and self.disk.geometry.state_bytes:
                self._load_state(node, step, offset)
            parent = node

    def _node(self, parent: Node, step: _Step) -> Node | None:
        """The block in the pool, held; None when it can't be brought there."""
        if step.node is not None:
            self.cache.blocks.retain([step.node.block])
            self._held.append(step.node.block)
            return step.node
        stored = step.stored
        if stored is None or not self.cache.blocks.available:
            return None
        try:
            data = self.disk.read(stored)
        except CapsuleError as error:
            self.disk.mistrust(stored.file, str(error))
            return None
        return self._insert(parent, stored.tokens, data)

    def _insert(self, parent: Node, tokens: Tokens, data: bytes) -> Node:
        (block,) = self.cache.blocks.allocate(1)
        self._held.append(block)
        self.runner.write_block(block, data)
        is_full = len(tokens) == _size(self.disk)
        add = self.cache.insert if is_full else self.cache.insert_tail
        node = add(parent, tokens, block)
        if node.block != block:
            # The pool had it all along: that one is what the next blocks hang on.
            self.cache.blocks.retain([node.block])
            self._held.append(node.block)
        return node

    def _load_state(self, node: Node, step: _Step, offset: int) -> None:
        if offset in node.states or step.stored is None:
            return
        try:
            data = self.disk.read_state(step.stored, offset)
        except CapsuleError as error:
            self.disk.mistrust(step.stored.file, str(error))
            return
        row = self.cache.take_state_row()
        if row is not None:
            self.runner.write_state(row, data)
            self.cache.store_state(node, offset, row)


def _size(disk: CapsuleDisk) -> int:
    return disk.geometry.block_tokens
