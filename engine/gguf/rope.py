"""Rotary position embedding as the metadata of a GGUF file asks for it.

Everything is reduced to one list of inverse frequencies and one factor on cosine and sine, so that the graph
need not know which kind of scaling a model was trained with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model_errors import corrupt, unsupported
from .metadata import ArchitectureMetadata

Frequencies = NDArray[np.float64]

DEFAULT_BASE = 10_000.0
DEFAULT_BETA_FAST = 32.0
DEFAULT_BETA_SLOW = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """The angle of pair i at position p is p · frequencies[i] radians, pair i being dimensions i and i + dim/2.

    `frequencies` are float64 [dim / 2] with all scaling applied. Cosine and sine are both multiplied by
    `attention_factor`, which is 1 unless YaRN is in use.
    """

    base: float
    dim: int
    frequencies: tuple[float, ...]
    attention_factor: float = 1.0


def read_rope(
    keys: ArchitectureMetadata, dim: int, context_length: int, factors: NDArray[np.float32] | None
) -> Rope:
    """The embedding for heads of `dim` dimensions. `factors` [dim / 2] is the tensor `rope_freqs.weight`.

    Raises ModelFileError, naming the kind of scaling when it is not supported.
    """
    base = keys.number("rope.freq_base", DEFAULT_BASE)
    if base <= 1:
        raise corrupt(f"{keys.key('rope.freq_base')} is {base}")
    frequencies = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if factors is not None:
        # Llama 3: the converter already worked out how much each frequency is slowed down.
        frequencies /= _checked_factors(factors, dim)
    kind, factor = _scaling(keys)
    if kind == "linear":
        return _rope(base, dim, frequencies / factor)
    if kind == "yarn":
        return _yarn(keys, base, dim, frequencies, factor, context_length)
    return _rope(base, dim, frequencies)


def original_context(keys: ArchitectureMetadata, context_length: int) -> int:
    """The context that the model was trained with before it was stretched, in tokens."""
    return keys.size("rope.scaling.original_context_length", context_length)


def _scaling(keys: ArchitectureMetadata) -> tuple[str, float]:
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise unsupported(
            f"rope scaling of the type {kind} is not supported (none, linear, yarn, llama3 are)"
        )
    if factor < 0:
        raise corrupt(f"{keys.key('rope.scaling.factor')} is {factor}")
    return kind, factor


def _checked_factors(factors: NDArray[np.float32], dim: int) -> Frequencies:
    values = factors.astype(np.float64)
    if values.shape != (dim // 2,) or not (np.isfinite(values) & (values > 0)).all():
        raise corrupt(f"rope_freqs.weight should hold {dim // 2} positive factors")
    return values


def _yarn(
    keys: ArchitectureMetadata,
    base: float,
    dim: int,
    frequencies: Frequencies,
    factor: float,
    context_length: int,
) -> Rope:
    """YaRN (Peng et al. 2023, arXiv:2309.00071, section 3.2): slow pairs are interpolated, fast ones kept."""
    if keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise unsupported("YaRN with an extrapolation factor other than 1 is not supported")
    original = original_context(keys, context_length)
    fast = keys.number("rope.scaling.yarn_beta_fast", DEFAULT_BETA_FAST)
    slow = keys.number("rope.scaling.yarn_beta_slow", DEFAULT_BETA_SLOW)
    if fast <= 0 or slow <= 0:
        raise corrupt("the beta values of YaRN should be positive")

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(pair_that_turns(fast)), 0)
    last = min(math.ceil(pair_that_turns(slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - first) / max(last - first, 0.001), 0, 1)
    return _rope(
        base, dim, frequencies * (1 - ramp) + frequencies / factor * ramp, _yarn_attention(keys, factor)
    )


def _yarn_attention(keys: ArchitectureMetadata, factor: float) -> float:
    """The factor on cosine and sine, 0.1 ln(factor) + 1 unless the file gives it (as transformers reads it)."""

    def magnitude(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0

    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    default = magnitude(1.0) / (magnitude(log_multiplier) if log_multiplier else 1.0)
    given = keys.number("rope.scaling.yarn_attn_factor", default)
    return given * keys.number("rope.scaling.attn_factor", 1.0)


def _rope(base: float, dim: int, frequencies: Frequencies, attention_factor: float = 1.0) -> Rope:
    return Rope(base, dim, tuple(float(f) for f in frequencies), attention_factor)
