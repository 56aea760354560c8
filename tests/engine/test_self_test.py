from __future__ import annotations

import pytest
from agentserve.engine.protocol import LoadModel
from agentserve.engine.runners.reference_model import open_reference
from agentserve.engine.runners.runner import Logits, Runner, StepPlan
from agentserve.engine.runners.self_test import run_self_test
from engine_rig import RecordingRunner


def reference() -> Runner:
    runner = open_reference(LoadModel("reference", None)).runner
    runner.allocate(8, 4)
    return runner


class DependsOnRows(RecordingRunner):
    """A row's logits change with the number of rows, as with kernels chosen by the batch."""

    def forward(self, plan: StepPlan) -> Logits:
        return super().forward(plan) + 1e-6 * len(plan.slices[0].tokens)


class LosesBlocks(RecordingRunner):
    """Writing a block back does nothing."""

    def write_block(self, block: int, data: bytes) -> None:
        self._runner.write_block(block, bytes(len(data)))


class RemembersRejected(RecordingRunner):
    """Every step leaves a trace in the next, as KV that is re-quantised while a block fills."""

    def forward(self, plan: StepPlan) -> Logits:
        logits = super().forward(plan)
        block = plan.slices[0].block_table[0]
        data = bytearray(self._runner.read_block(block))
        data[2] ^= 1 + sum(plan.slices[0].tokens) % 127
        self._runner.write_block(block, bytes(data))
        return logits


def test_the_reference_runner_passes() -> None:
    assert run_self_test(reference()).passed


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (DependsOnRows, "rows_agree"),
        (LosesBlocks, "replay_agrees"),
        (RemembersRejected, "rollback_agrees"),
    ],
)
def test_a_broken_runner_is_found_out(broken: type[RecordingRunner], found: str) -> None:
    result = run_self_test(broken(reference()))
    assert not getattr(result, found)
    assert not result.passed
