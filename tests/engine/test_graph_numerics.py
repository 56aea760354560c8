"""Our graphs against transformers in float32, on tiny random models of every family.

Tolerances. The files hold types that the graph keeps exactly (F16, Q4_0, Q8_0, Q5_0), so weights agree bit for bit.
With float32 activations and float32 KV what is left is the order of float32 additions: over 4 layers of width 64
that stays below 1e-4 of logits of size 1. In the settings that are served, activations are quantised to int8 in groups
of 32 (a step of 1/127 of the group's largest value, so about 0.4 % noise per product) and KV to u8: 5 % of the
spread of the logits bounds the sum over the layers with room to spare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.graph.decoder import build_decoder
from agentserve.engine.graph.lowering import check_census, lower, take_census
from agentserve.engine.graph.weights import GraphWeights
from agentserve.engine.runners.loading import expected_kinds
from agentserve.engine.runners.openvino import OpenVinoRunner, cpu_properties
from agentserve.engine.runners.runner import SequenceSlice, StepPlan
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray
from tiny_models import FAMILIES, TinyModel, write_tiny_gguf

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

FULL_PRECISION: dict[str, object] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}
TOKENS = tuple(int(t) for t in np.random.default_rng(3).integers(0, 300, 70))


def compiled(path: Path, properties: dict[str, object]) -> OpenVinoRunner:
    source = open_gguf(path)
    model = build_decoder(source.config, GraphWeights(source))
    lower(model)
    compiled = ov.Core().compile_model(model, "CPU", properties)
    check_census(take_census(compiled), source.config, expected_kinds(source))
    runner = OpenVinoRunner(compiled)
    runner.allocate(8, 0)
    return runner


def our_logits(runner: OpenVinoRunner, split: int) -> NDArray[np.float32]:
    """Logits of all TOKENS, in two steps, on blocks in no order."""
    table = (5, 2, 7)
    first = SequenceSlice(TOKENS[:split], 0, table, tuple(range(split)))
    rest = SequenceSlice(TOKENS[split:], split, table, tuple(range(len(TOKENS) - split)))
    return np.concatenate([runner.forward(StepPlan((part,))).copy() for part in (first, rest)])


def reference_logits(tiny: TinyModel) -> NDArray[np.float32]:
    """What transformers computes from the same weights in float32."""
    import transformers

    config = getattr(transformers, tiny.hf_class)(**tiny.hf_config)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    state = {name: torch.tensor(value) for name, value in tiny.state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    with torch.no_grad():
        return np.asarray(model(torch.tensor([TOKENS])).logits[0].numpy())


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("kind", [Q.F16, Q.Q8_0, Q.Q5_0, Q.Q4_0], ids=lambda kind: kind.name)
def test_logits_equal_those_of_transformers(family: str, kind: Q, tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", family, tensor_type=kind, seed=11)
    expected = reference_logits(tiny)
    ours = our_logits(compiled(tiny.path, FULL_PRECISION), split=40)
    np.testing.assert_allclose(ours, expected, atol=1e-4 * max(1.0, float(np.abs(expected).max())), rtol=0)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("kind", [Q.Q4_1, Q.Q4_K], ids=lambda kind: kind.name)
def test_types_with_minima_stay_near_transformers_in_every_product(
    family: str, kind: Q, tmp_path: Path
) -> None:
    """Head and embedding too: their residual columns are handled apart."""
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", family, tensor_type=kind, seed=11)
    expected = reference_logits(tiny)
    ours = our_logits(compiled(tiny.path, FULL_PRECISION), split=40)
    assert np.sqrt(np.mean((ours - expected) ** 2)) < 0.08 * expected.std()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_served_settings_stay_close_to_transformers(family: str, tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", family, tensor_type=Q.Q4_0, seed=12)
    expected = reference_logits(tiny)
    ours = our_logits(compiled(tiny.path, cpu_properties(0)), split=33)
    assert np.abs(ours - expected).max() < 0.05 * (expected.max() - expected.min())


ROPE_SCALINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": (
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope_type": "linear", "factor": 4.0},
    ),
    "yarn": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
}


def test_several_sequences_in_one_step_do_not_see_each_other(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3", tensor_type=Q.F16, seed=13)
    runner = compiled(tiny.path, FULL_PRECISION)
    one, two = TOKENS[:20], TOKENS[30:55]
    alone = [
        runner.forward(StepPlan((SequenceSlice(tokens, 0, (0,), (len(tokens) - 1,)),))).copy()
        for tokens in (one, two)
    ]
    slices = (SequenceSlice(one, 0, (3,), (19,)), SequenceSlice(two, 0, (4,), (24,)))
    together = runner.forward(StepPlan(slices))
    np.testing.assert_array_equal(together, np.concatenate(alone))
