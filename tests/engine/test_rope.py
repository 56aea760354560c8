"""Rotary frequencies against transformers' own, for each kind of scaling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from agentserve.engine.gguf.metadata import ArchitectureMetadata, Metadata
from agentserve.engine.gguf.rope import Rope, read_rope
from agentserve.engine.model_errors import ModelFileError

DIM, CONTEXT, BASE = 64, 32_768, 1_000_000.0


def rope(factors: np.ndarray[Any, np.dtype[np.float32]] | None = None, **keys: Any) -> Rope:
    values = {f"llama.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
    metadata = Metadata({"llama.rope.freq_base": BASE} | values)
    return read_rope(ArchitectureMetadata(metadata, "llama"), DIM, CONTEXT, factors)


def test_without_scaling_frequencies_fall_geometrically_from_one() -> None:
    plain = rope()
    assert plain.frequencies[0] == 1.0
    assert plain.frequencies[-1] == pytest.approx(BASE ** (-62 / 64))
    assert (plain.base, plain.dim, len(plain.frequencies), plain.attention_factor) == (BASE, DIM, 32, 1.0)


def test_a_factor_without_a_type_is_linear_and_the_old_key_counts() -> None:
    slower = tuple(f / 4 for f in rope().frequencies)
    assert rope(scaling__factor=4.0).frequencies == pytest.approx(slower)
    assert rope(scale_linear=4.0).frequencies == pytest.approx(slower)
    assert rope(scaling__type="none", scaling__factor=4.0).frequencies == rope().frequencies


def test_llama_3_factors_slow_each_frequency_by_their_own() -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    assert rope(factors).frequencies == pytest.approx(np.array(rope().frequencies) / factors)


@pytest.mark.parametrize(
    "factors", [np.ones(31, np.float32), np.zeros(32, np.float32), np.full(32, np.nan, np.float32)]
)
def test_senseless_llama_3_factors_are_refused(factors: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight should hold 32 positive factors"):
        rope(factors)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones_by_the_factor() -> None:
    plain, stretched = (
        rope(),
        rope(scaling__type="yarn", scaling__factor=4.0, scaling__original_context_length=4096),
    )
    assert stretched.frequencies[0] == plain.frequencies[0]
    assert stretched.frequencies[-1] == pytest.approx(plain.frequencies[-1] / 4)
    assert stretched.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_takes_its_attention_factor_from_the_file() -> None:
    given = rope(scaling__type="yarn", scaling__factor=4.0, scaling__yarn_attn_factor=1.25)
    assert given.attention_factor == pytest.approx(1.25)
    cancelled = rope(scaling__type="yarn", scaling__factor=4.0, scaling__yarn_log_multiplier=1.0)
    assert cancelled.attention_factor == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scaling__type": "longrope"}, "longrope is not supported"),
        ({"scaling__type": "yarn", "scaling__yarn_ext_factor": 0.5}, "extrapolation factor"),
        ({"scaling__type": "yarn", "scaling__factor": 2.0, "scaling__yarn_beta_fast": 0.0}, "beta values"),
        ({"scaling__factor": -1.0}, "scaling.factor is -1"),
        ({"freq_base": 1.0}, "freq_base is 1"),
        ({"freq_base": math.nan}, "not a finite number"),
    ],
)
def test_other_scaling_and_senseless_values_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        rope(**keys)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"scaling__type": "linear", "scaling__factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
            {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 8192},
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 2048,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.5,
            },
            {
                "scaling__type": "yarn",
                "scaling__factor": 16.0,
                "scaling__original_context_length": 2048,
                "scaling__yarn_beta_fast": 16.0,
                "scaling__yarn_beta_slow": 2.0,
                "scaling__yarn_attn_factor": 1.5,
            },
        ),
    ],
)
def test_scaled_frequencies_are_those_of_transformers(
    parameters: dict[str, Any], keys: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=DIM * 4,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": BASE, **parameters},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
    ours = rope(**keys)
    # transformers computes in float32: 2⁻²⁴ per operation, a handful of operations.
    assert ours.frequencies == pytest.approx(expected.double().numpy(), rel=1e-5)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-6)
