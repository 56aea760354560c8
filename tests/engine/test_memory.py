from __future__ import annotations

import pytest
from agentserve.engine.runners.memory import available_bytes, plan_kv, resident_bytes
from agentserve.engine.runners.runner import KvGeometry

GEOMETRY = KvGeometry(block_tokens=32, block_bytes=1000)


def test_by_default_a_share_of_memory_is_used_but_no_more_than_sixteen_contexts() -> None:
    plenty = plan_kv(GEOMETRY, context_length=320, budget_bytes=0, available=10**9)
    assert plenty == (16 * 11, 320, None, 0)
    scarce = plan_kv(GEOMETRY, context_length=320, budget_bytes=0, available=50_000)
    assert scarce.blocks == 20


def test_a_budget_is_kept_to_the_block() -> None:
    assert plan_kv(GEOMETRY, 320, budget_bytes=15_999, available=10**9).blocks == 15


def test_a_context_that_does_not_fit_is_cut_and_said() -> None:
    cut = plan_kv(GEOMETRY, 320, budget_bytes=5_000, available=10**9)
    assert (cut.blocks, cut.context_length) == (5, 128)
    assert cut.note == "the context is limited to 128 tokens by the KV budget of 5,000 bytes"


def test_less_than_two_blocks_is_refused_with_both_numbers_and_the_limit() -> None:
    with pytest.raises(MemoryError, match=r"needs 2,000 bytes and may take 1,999 \(kv_budget\)"):
        plan_kv(GEOMETRY, 320, budget_bytes=1_999, available=10**9)
    with pytest.raises(MemoryError, match=r"may take 400 \(40% of the memory that is free\)"):
        plan_kv(GEOMETRY, 320, budget_bytes=0, available=1_000)


def test_this_machine_has_memory_and_this_process_uses_some() -> None:
    assert 0 < resident_bytes() < 2**40
    assert available_bytes() > 0
