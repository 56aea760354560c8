"""Compressed weights against `gguf.quants.dequantize`, which is the meaning of the file's bytes.

Bounds, per weight, with s the scale that is kept for its group:
    Q4_0, Q5_0, Q8_0        0: same whole numbers, same scale
    Q4_1                    s / 2: only the zero point is rounded, or the group is fitted again
    Q4_K                    s / 2, and the scale (11 + 6 bits) is rounded to float16: 15 · (s · 2⁻¹¹ + 2⁻²⁵)
    Q5_1, Q5_K, Q6_K        s / 2, where 255 · s is the range of the group with 0 in it
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.gguf.header import TensorInfo
from agentserve.engine.gguf.model_config import half_row_order
from agentserve.engine.gguf.source import Tensor, open_gguf
from agentserve.engine.gguf.weights import (
    CompressedWeight,
    DenseWeight,
    dense,
    half,
    held_bytes,
    quantised,
    scheme,
    weight,
    weight_kind,
)
from agentserve.engine.model_errors import ModelFileError
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from tiny_models import FAMILIES, random_blocks, write_tiny_gguf

Floats = NDArray[np.float32]
EXACT = (Q.Q4_0, Q.Q5_0, Q.Q8_0)
WHOLE_ZERO = (Q.Q4_1, Q.Q4_K)
FITTED = (Q.Q5_1, Q.Q5_K, Q.Q6_K)
QUANTISED = (*EXACT, *WHOLE_ZERO, *FITTED)
K_QUANTS = (Q.Q4_K, Q.Q5_K, Q.Q6_K)
SINGLE_ROUNDING = 2.0**-20  # float32 arithmetic of the comparison itself, relative


def tensor(
    kind: Q, shape: tuple[int, ...], data: NDArray[np.generic], name: str = "blk.0.ffn_up.weight"
) -> Tensor:
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return Tensor(TensorInfo(name, kind, shape, 0, flat.size), flat)


def random_tensor(kind: Q, rows: int = 6, columns: int = 512, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    if kind in K_QUANTS:
        return tensor(kind, (rows, columns), random_blocks(kind, rows * columns // 256, rng))
    return tensor(kind, (rows, columns), quantize(rng.standard_normal((rows, columns), np.float32), kind))


def meant(held: Tensor) -> Floats:
    blocks = held.data.reshape(held.shape[0], -1)
    return np.asarray(dequantize(blocks, held.type), np.float32).reshape(held.shape)


def assert_within_bounds(held: Tensor, result: CompressedWeight, expected: Floats) -> None:
    scales, groups = np.abs(result.scale[:, :, 0].astype(np.float32)), expected.shape[1] // 32
    scale = np.repeat(scales[:, :groups], 32, axis=1)
    bound = np.zeros_like(scale) if held.type in EXACT else scale * 0.5
    if result.residual_columns:
        bound += np.repeat(scales[:, groups:], 32 * 32, axis=1)[:, : expected.shape[1]] * 0.5
    if held.type is Q.Q4_K:
        bound += 15 * (scale * 2.0**-11 + 2.0**-25)
    tolerance = bound + np.abs(expected) * SINGLE_ROUNDING * (held.type not in EXACT)
    assert (np.abs(result.values() - expected) <= tolerance).all()


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_type_stays_within_its_bound(kind: Q) -> None:
    held = random_tensor(kind)
    result = quantised(held)
    assert result.shape == (6, 17 if kind in WHOLE_ZERO else 16, 32)
    assert result.bits == (4 if kind in (Q.Q4_0, Q.Q4_1, Q.Q4_K) else 8)
    assert_within_bounds(held, result, meant(held))


def test_the_rest_that_is_kept_brings_ordinary_groups_to_a_25th_of_a_step() -> None:
    held = random_tensor(Q.Q4_1, rows=40)
    result = quantised(held)
    step = np.abs(result.scale[:, :16].astype(np.float32))
    error = np.abs(result.values() - meant(held)).reshape(40, 16, 32).max(2, keepdims=True)
    # Groups without zero inside their range are fitted again, to half a step; random weights have few.
    assert np.mean(error <= step / 25) > 0.9


def test_rounded_minima_have_no_rest_and_stay_within_half_a_step() -> None:
    held = random_tensor(Q.Q4_1, rows=40)
    result = quantised(held, round_minima=True)
    assert (result.residual_columns, result.shape) == (0, (40, 16, 32))
    assert held_bytes(Q.Q4_1, 40, 512, round_minima=True) == result.nbytes
    assert_within_bounds(held, result, meant(held))


def test_columns_of_the_rest_are_padded_to_whole_groups() -> None:
    result = quantised(random_tensor(Q.Q4_1, columns=576))
    assert (result.columns, result.residual_columns, result.shape) == (576, 32, (6, 19, 32))


@pytest.mark.parametrize("kind", FITTED)
def test_fitting_again_with_eight_bits_moves_a_weight_by_a_500th_of_its_groups_range(kind: Q) -> None:
    held = random_tensor(kind)
    expected = meant(held)
    groups = expected.reshape(-1, 32)
    width = np.maximum(groups.max(1), 0) - np.minimum(groups.min(1), 0)
    error = np.abs(quantised(held).values() - expected).reshape(-1, 32).max(1)
    assert (error <= width / 500).all()


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_come_in_the_order_asked_for(kind: Q) -> None:
    held = random_tensor(kind, rows=12)
    order = half_row_order(3, 4)
    straight, ordered = quantised(held), quantised(held, order)
    assert (ordered.values() == straight.values()[order]).all()


def test_rows_keep_their_order_over_the_chunks_of_a_large_matrix() -> None:
    held = random_tensor(Q.Q4_1, rows=2600, columns=1024)
    order = np.random.default_rng(1).permutation(2600)
    expected = meant(held)
    assert_within_bounds(held, quantised(held), expected)
    assert_within_bounds(held, quantised(held, order), expected[order])


def test_packed_values_hold_the_even_index_in_the_low_half() -> None:
    data = np.zeros((1, 18), np.uint8)
    data[0, 0:2] = np.array([1.0], np.float16).view(np.uint8)
    data[0, 2:18] = [((i + 16) % 16) << 4 | i for i in range(16)]  # elements i and i + 16 both hold i
    result = quantised(tensor(Q.Q4_0, (1, 32), data))
    assert result.packed.tolist() == [(i + 1) << 4 | i for i in range(0, 16, 2)] * 2
    assert result.zero_points.tolist() == [8]  # one nibble and its padding
    assert result.values().tolist() == [[float(i - 8) for i in range(16)] * 2]


# Multiples of 2⁻¹⁰: gguf's own quantiser divides by zero on groups of nearly nothing.
groups = arrays(np.float32, (4, 32), elements=st.integers(-(2**13), 2**13).map(lambda step: step / 1024))


@settings(max_examples=150, deadline=None)
@given(
    values=groups,
    shift=st.sampled_from([0.0, 20.0, -20.0]),
    kind=st.sampled_from([Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0]),
)
def test_any_group_that_gguf_can_write_stays_within_its_bound(values: Floats, shift: float, kind: Q) -> None:
    held = tensor(kind, (4, 32), quantize(values + np.float32(shift), kind))
    assert_within_bounds(held, quantised(held), meant(held))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(K_QUANTS),
    scales=arrays(np.float16, 2, elements=st.floats(-(2.0**-6), 2.0**-6, width=16)),
)
def test_any_bytes_of_a_k_quant_stay_within_its_bound(
    seed: int, kind: Q, scales: NDArray[np.float16]
) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (2, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    if kind is Q.Q6_K:
        data[:, 208:210] = scales[:1].view(np.uint8)
    else:
        data[:, 0:4] = scales.view(np.uint8)
    held = tensor(kind, (1, 512), data)
    assert_within_bounds(held, quantised(held), meant(held))


@pytest.mark.parametrize("kind", [Q.Q4_1, Q.Q5_1])
@pytest.mark.parametrize(
    ("low", "high"),
    [(1.0, 1.5), (-1.5, -1.0), (0.25, 0.25), (-0.25, -0.25), (0.0, 0.0), (100.0, 101.0), (0.0, 3.0)],
)
def test_groups_on_one_side_of_zero_are_fitted_again_instead_of_clipped(
    kind: Q, low: float, high: float
) -> None:
    held = tensor(kind, (1, 32), quantize(np.linspace(low, high, 32, dtype=np.float32)[None], kind))
    result = quantised(held)
    steps = 2**result.bits - 1
    furthest = max(abs(low), abs(high))
    assert_within_bounds(held, result, meant(held))
    assert np.abs(result.values() - meant(held)).max() <= furthest / steps / 2 * 1.002
    assert (result.values()[meant(held) == 0] == 0).all()


def test_a_constant_group_keeps_its_value() -> None:
    held = tensor(Q.Q4_1, (1, 32), quantize(np.full((1, 32), 0.3, np.float32), Q.Q4_1))
    assert np.allclose(quantised(held).values(), 0.3, rtol=2**-10)


def test_a_scale_below_float16_is_lost_only_where_it_does_not_matter() -> None:
    """d · scale of a K-quant can be far below 2⁻²⁴; the weights are then below a millionth."""
    data = random_blocks(Q.Q4_K, 1, np.random.default_rng(0))
    data[:, 0:4] = np.array([6e-8, 6e-8], np.float16).view(np.uint8)
    held = tensor(Q.Q4_K, (1, 256), data)
    assert np.abs(quantised(held).values() - meant(held)).max() < 15 * 2.0**-25 + 2.0**-24


def with_scale(kind: Q, scale: float) -> Tensor:
    data = (
        random_blocks(kind, 1, np.random.default_rng(0))
        if kind in K_QUANTS
        else quantize(np.ones((1, 32), np.float32), kind)
    )
    at = 208 if kind is Q.Q6_K else 0
    data[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    return tensor(kind, (1, data.size // GGML_QUANT_SIZES[kind][1] * GGML_QUANT_SIZES[kind][0]), data)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_scale_that_is_not_finite_is_refused_with_the_tensors_name(kind: Q, scale: float) -> None:
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up\.weight holds values"):
        quantised(with_scale(kind, scale))


@pytest.mark.parametrize("kind", [Q.Q4_1, Q.Q5_1, Q.Q4_K])
def test_a_minimum_that_is_not_finite_is_refused(kind: Q) -> None:
    data = with_scale(kind, 1.0).data.copy()
    data[2:4] = np.array([np.nan], np.float16).view(np.uint8)
    with pytest.raises(ModelFileError, match="not numbers"):
        quantised(tensor(kind, (1, GGML_QUANT_SIZES[kind][0]), data))


@pytest.mark.parametrize("kind", [Q.Q4_K, Q.Q5_K, Q.Q6_K])
def test_a_scale_beyond_float16_is_refused(kind: Q) -> None:
    with pytest.raises(ModelFileError) as caught:
        quantised(with_scale(kind, 60000.0))
    assert (caught.value.code, caught.value.message) == (
        "unsupported_model",
        "tensor blk.0.ffn_up.weight holds values beyond the range of float16",
    )


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16])
def test_float_matrices_become_float16(kind: Q) -> None:
    values = np.random.default_rng(0).standard_normal((8, 20)).astype(np.float32)
    held = tensor(kind, (8, 20), values if kind is Q.F32 else quantize(values, kind))
    order = np.arange(8)[::-1]
    result = weight(held, order)
    assert isinstance(result, DenseWeight)
    assert (result.values == meant_floats(held)[order].astype(np.float16)).all()
    assert (dense(held, order) == meant_floats(held)[order]).all()


def meant_floats(held: Tensor) -> Floats:
    plain = {Q.F32: np.float32, Q.F16: np.float16}.get(held.type)
    data = held.data if plain is None else held.data.view(plain)
    return np.asarray(dequantize(data, held.type), np.float32).reshape(held.shape)


@pytest.mark.parametrize("kind", [Q.F32, Q.BF16])
@pytest.mark.parametrize(
    ("value", "message"),
    [(1e6, "beyond the range of float16"), (np.nan, "not finite"), (np.inf, "not finite")],
)
def test_a_float_that_float16_can_not_hold_is_refused(kind: Q, value: float, message: str) -> None:
    values = np.full((2, 4), value, np.float32)
    held = tensor(kind, (2, 4), values if kind is Q.F32 else quantize(values, kind))
    with pytest.raises(ModelFileError, match=message):
        half(held)


@pytest.mark.parametrize("kind", [*QUANTISED, Q.F16])
def test_the_announced_size_and_kind_are_those_of_the_result(kind: Q) -> None:
    held = tensor(kind, (6, 512), np.ones((6, 512), np.float16)) if kind is Q.F16 else random_tensor(kind)
    result = weight(held)
    size = result.nbytes if isinstance(result, CompressedWeight) else result.values.nbytes
    assert held_bytes(kind, 6, 512) == size
    assert weight_kind(kind) == (f"u{result.bits}" if isinstance(result, CompressedWeight) else "f16")
    assert (
        f"{result.bits}-bit" in scheme(kind)
        if isinstance(result, CompressedWeight)
        else "float16" in scheme(kind)
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [Q.Q8_0, Q.Q4_K, Q.F16])
def test_weights_of_a_file_are_those_that_transformers_would_name(
    tmp_path: Path, family: str, kind: Q
) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", family, tensor_type=kind)
    model = open_gguf(tiny.path)
    config = model.config
    for letter, heads in (("q", config.heads), ("k", config.kv_heads)):
        order = half_row_order(heads, config.head_dim) if config.interleaved_qk else None
        held = weight(model.tensor(f"blk.1.attn_{letter}.weight"), order)
        values = held.values() if isinstance(held, CompressedWeight) else held.values.astype(np.float32)
        expected = tiny.state[f"model.layers.1.self_attn.{letter}_proj.weight"]
        assert np.abs(values - expected).max() <= (0.05 if kind is Q.Q4_K else 0)
