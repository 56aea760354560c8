from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.graph.decoder import build_decoder
from agentserve.engine.graph.lowering import Census, LoweringError, check_census, lower, take_census
from agentserve.engine.graph.weights import GraphWeights
from agentserve.engine.runners.openvino import OpenVinoRunner, cpu_properties
from agentserve.engine.runners.runner import Logits, SequenceSlice, StepPlan
from gguf.constants import GGMLQuantizationType as Q
from tiny_models import write_tiny_gguf

TOKENS = tuple(int(t) for t in np.random.default_rng(1).integers(0, 300, 80))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> OpenVinoRunner:
    tiny = write_tiny_gguf(
        tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", tensor_type=Q.Q4_0, seed=3
    )
    source = open_gguf(tiny.path)
    model = build_decoder(source.config, GraphWeights(source))
    lower(model)
    runner = OpenVinoRunner(ov.Core().compile_model(model, "CPU", cpu_properties(2)))
    runner.allocate(16, 0)
    return runner


def feed(runner: OpenVinoRunner, start: int, stop: int, table: tuple[int, ...]) -> Logits:
    """Feeds TOKENS[start:stop]; the logits of the last one."""
    part = SequenceSlice(TOKENS[start:stop], start, table, (stop - start - 1,))
    return runner.forward(StepPlan((part,))).copy()


def test_a_block_takes_the_bytes_that_the_pools_have_for_it(runner: OpenVinoRunner) -> None:
    assert len(runner.read_block(0)) == runner.geometry.block_bytes
    assert runner.geometry.block_tokens == 32


def test_copied_blocks_continue_as_the_originals(runner: OpenVinoRunner) -> None:
    feed(runner, 0, 70, (0, 1, 2))
    for source, target in ((0, 9), (1, 4), (2, 7)):
        runner.copy_block(source, target)
    np.testing.assert_array_equal(feed(runner, 70, 74, (0, 1, 2)), feed(runner, 70, 74, (9, 4, 7)))


def test_blocks_read_and_written_back_elsewhere_continue_as_the_originals(runner: OpenVinoRunner) -> None:
    feed(runner, 0, 64, (0, 1))
    saved = [runner.read_block(block) for block in (0, 1)]
    expected = feed(runner, 64, 68, (0, 1, 2))
    for block, data in zip((5, 3), saved, strict=True):
        runner.write_block(block, data)
    np.testing.assert_array_equal(feed(runner, 64, 68, (5, 3, 6)), expected)


def test_a_length_cut_back_forgets_what_was_behind_it(runner: OpenVinoRunner) -> None:
    feed(runner, 0, 40, (0, 1, 2))
    expected = feed(runner, 40, 44, (0, 1, 2))
    feed(runner, 40, 80, (0, 1, 2))
    np.testing.assert_array_equal(feed(runner, 40, 44, (0, 1, 2)), expected)


def test_rows_from_two_up_do_not_depend_on_how_the_prompt_is_cut(runner: OpenVinoRunner) -> None:
    whole = feed(runner, 0, 80, (0, 1, 2))
    for cut in (2, 31, 32, 33, 78):
        feed(runner, 0, cut, (8, 9, 10))
        np.testing.assert_array_equal(feed(runner, cut, 80, (8, 9, 10)), whole)


def test_a_step_without_rows_gives_no_logits(runner: OpenVinoRunner) -> None:
    plan = StepPlan((SequenceSlice(TOKENS[:8], 0, (0,), ()),))
    assert runner.forward(plan).shape == (0, runner.vocab_size)


def test_a_block_of_the_wrong_length_is_refused_with_both_lengths(runner: OpenVinoRunner) -> None:
    with pytest.raises(ValueError, match=f"{runner.geometry.block_bytes} bytes, not 3"):
        runner.write_block(0, b"abc")


def test_the_census_refuses_weights_that_were_unpacked_and_attention_that_is_not_paged(
    tmp_path: Path,
) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", "llama", tensor_type=Q.Q8_0, seed=3)
    source = open_gguf(tiny.path)
    model = build_decoder(source.config, GraphWeights(source))
    stateful = take_census(ov.Core().compile_model(model, "CPU", cpu_properties(2)))
    with pytest.raises(LoweringError, match="0 of 4 attention layers are paged"):
        check_census(stateful, source.config, {})
    with pytest.raises(LoweringError, match="3 of 29 matrices stayed u8"):
        check_census(Census(4, {"u8": 3, "f32": 26}), source.config, {"u8": 29})
