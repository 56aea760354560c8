"""Memory behind the blocks that the next prompt will take, before it comes.

A KV pool takes no room until it is written (`runners.memory.zeroed_pages`). So each page that a prompt writes first is
a fault in the midst of a step: 1,700 of them in 512 tokens of SmolLM2, one to two hundredths of the prefill.
"""

from __future__ import annotations

from ..runners.runner import Runner
from .kv_pool import BlockPool


class ReadyBlocks:
    """Writes zeros to the `count` blocks of a pool that will be taken next; on the engine thread, while it is idle."""

    def __init__(self, runner: Runner, blocks: BlockPool, count: int) -> None:
        self._runner = runner
        self._blocks = blocks
        self._count = count
        self._written: set[int] = set()

    def write_one(self) -> bool:
        """Writes one more block. False when all were written."""
        block = next((b for b in self._blocks.next_free(self._count) if b not in self._written), None)
        if block is None:
            return False
        self._runner.write_block(block, bytes(self._runner.geometry.block_bytes))
        self._written.add(block)
        return True
