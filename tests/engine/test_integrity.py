"""The books are checked in parts: a round finds what is wrong anywhere, and no part takes longer for a larger pool."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from agentserve.engine.prefix.block_cache import BlockCache, Node
from agentserve.engine.prefix.integrity import PART_BLOCKS, Holders, IntegrityCheck
from engine_rig import Rig

BLOCKS, SIZE = 5 * PART_BLOCKS + 7, 4


class WatchedCache(BlockCache):
    """Notes which blocks are looked at."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        super().__init__("model", blocks, 0, SIZE)
        self.looked_at: list[list[int]] = []

    def check_nodes(self, blocks: Iterable[int]) -> None:
        self.looked_at.append(list(blocks))
        super().check_nodes(blocks)


def filled(cache: BlockCache) -> list[Node]:
    """A chain through all of the pool, held by nobody."""
    node, nodes = cache.root(""), []
    for number, block in enumerate(cache.blocks.allocate(cache.blocks.size)):
        node = cache.insert(node, (number, 1, 2, 3), block)
        nodes.append(node)
        cache.blocks.release([block])
    return nodes


def of_nobody(cache: BlockCache) -> IntegrityCheck:
    return IntegrityCheck(cache, lambda: Holders([], []))


def test_a_round_looks_at_every_block_once_and_a_part_at_few() -> None:
    cache = WatchedCache()
    filled(cache)
    check = of_nobody(cache)
    for _ in range(2):
        cache.looked_at.clear()
        assert [check.part() for _ in range(6)] == [True] * 5 + [False]
        assert sorted(block for part in cache.looked_at for block in part) == list(range(BLOCKS))
        assert max(map(len, cache.looked_at)) == PART_BLOCKS


@pytest.mark.parametrize("damaged", [0, PART_BLOCKS, BLOCKS - 1])
def test_a_wrong_node_is_found_wherever_it_lies(damaged: int) -> None:
    cache = WatchedCache()
    nodes = filled(cache)
    nodes[damaged].tokens = (9, 9, 9, 9)
    with pytest.raises(AssertionError, match=f"block {damaged} has a wrong address"):
        of_nobody(cache).whole()
    assert cache.looked_at[-1][0] <= damaged <= cache.looked_at[-1][-1]


def test_a_reference_without_a_holder_is_found() -> None:
    cache = WatchedCache()
    nodes = filled(cache)
    cache.blocks.retain([nodes[-1].block])
    check = of_nobody(cache)
    assert all(check.part() for _ in range(5))
    with pytest.raises(AssertionError, match="1 references, 0 holders"):
        check.part()


def test_requests_between_two_parts_do_no_harm() -> None:
    rig = Rig(blocks=2 * PART_BLOCKS)
    assert rig.engine.integrity.part()
    rig.submit("between", max_new_tokens=40)
    rig.engine.step()
    assert not rig.engine.integrity.part()
    assert rig.engine.integrity.part()
    rig.run()
    assert rig.finished("between").prompt_tokens
