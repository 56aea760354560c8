from __future__ import annotations

import pytest
from agentserve.engine.prefix.kv_pool import BlockPool, OutOfBlocks
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def test_asking_for_too_much_says_how_much_there_is_and_takes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(2)
    assert (caught.value.wanted, caught.value.free, pool.free) == (2, 1, 1)


def test_a_shared_block_is_free_after_its_last_holder_let_go() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.retain(blocks)
    pool.release(blocks)
    assert pool.used == 1
    pool.release(blocks)
    assert pool.used == 0


def test_releasing_twice_is_caught() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)


def test_the_integrity_check_finds_a_forgotten_holder() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="1 references, 0 holders"):
        pool.check_integrity([])


class PoolMachine(RuleBasedStateMachine):
    """Random holders of a small pool: the books always balance."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.holders: list[list[int]] = []

    @rule(count=st.integers(0, 13))
    def allocate(self, count: int) -> None:
        free = self.pool.free
        if count > free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = list(data.draw(st.sampled_from(self.holders)))
        self.pool.retain(blocks)
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity(self.holders)
        assert self.pool.used == len({block for holder in self.holders for block in holder})


TestPoolMachine = PoolMachine.TestCase
