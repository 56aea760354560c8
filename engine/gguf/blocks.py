"""Blocks of GGUF's quantised types → groups of 32 weights as unsigned values, zero points and scales.

Layouts are those of ggml (`ggml-common.h`); what each type becomes is told in `gguf.weights`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

GROUP = 32

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
Floats = NDArray[np.float32]

_Q = GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class Groups:
    """Converted groups: q packed [groups, 16 or 32], zero points [groups], scales [groups].

    `residual` [groups] is what rounding the zero points moved each group by; None where they are exact.
    """

    packed: Bytes
    zero_points: Bytes
    scale: Halves
    residual: Floats | None = None


def _q4_0(blocks: Bytes) -> Groups:
    scale = _half_at(blocks, 0)
    return Groups(_interleave_halves(blocks[:, 2:]), np.full(len(blocks), 8, np.uint8), scale)


def _q4_1(blocks: Bytes) -> Groups:
    scale, minimum = _half_at(blocks, 0), _half_at(blocks, 2)
    return _with_whole_zero_points(_interleave_halves(blocks[:, 4:]), _single(scale), _single(minimum))


def _q4_k(blocks: Bytes) -> Groups:
    """A block of 256: d, dmin, eight 6-bit scales and minima in 12 bytes, then 4 × 32 bytes of two groups each."""
    factors, minima = _k_scales(blocks[:, 4:16])
    scale = (_single(_half_at(blocks, 0))[:, None] * factors).reshape(-1)
    minimum = (_single(_half_at(blocks, 2))[:, None] * minima).reshape(-1)
    pairs = blocks[:, 16:].reshape(-1, 4, 32)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1)
    return _with_whole_zero_points(pack_nibbles(nibbles).reshape(-1, 16), scale, -minimum)


def _q5_0(blocks: Bytes) -> Groups:
    """d, 32 high bits, 16 bytes of low halves."""
    high = np.unpackbits(np.ascontiguousarray(blocks[:, 2:6]), axis=1, bitorder="little")
    low = np.concatenate([blocks[:, 6:] & 15, blocks[:, 6:] >> 4], axis=1)
    return Groups(low | high * np.uint8(16), np.full(len(blocks), 16, np.uint8), _half_at(blocks, 0))


def _q8_0(blocks: Bytes) -> Groups:
    # int8 q + 128 is the same bits with the sign bit flipped.
    return Groups(blocks[:, 2:] ^ np.uint8(128), np.full(len(blocks), 128, np.uint8), _half_at(blocks, 0))


def _fitted_from(kind: GGMLQuantizationType) -> Callable[[Bytes], Groups]:
    def convert(blocks: Bytes) -> Groups:
        return fit(floats(blocks, kind).reshape(-1, GROUP), 255)

    return convert


CONVERTERS: Mapping[GGMLQuantizationType, tuple[int, Callable[[Bytes], Groups]]] = {
    _Q.Q4_0: (4, _q4_0),
    _Q.Q4_1: (4, _q4_1),
    _Q.Q4_K: (4, _q4_k),
    _Q.Q5_0: (8, _q5_0),
    _Q.Q8_0: (8, _q8_0),
    _Q.Q5_1: (8, _fitted_from(_Q.Q5_1)),
    _Q.Q5_K: (8, _fitted_from(_Q.Q5_K)),
    _Q.Q6_K: (8, _fitted_from(_Q.Q6_K)),
}
WITH_MINIMA = frozenset({_Q.Q4_1, _Q.Q4_K})


def _with_whole_zero_points(packed: Bytes, scale: Floats, minimum: Floats) -> Groups:
    """4-bit groups w = q · scale + minimum, q packed [groups, 16]; those without a zero point in 0 … 15 are
    fitted again. A negative scale is as good as a positive one."""
    rounded = scale.astype(np.float16)
    divisor = _single(rounded)
    zero = np.rint(-minimum / np.where(divisor == 0, 1, divisor))
    misfit = np.flatnonzero((divisor == 0) & (minimum != 0) | (zero < 0) | (zero > 15))
    zero_points = np.clip(np.nan_to_num(zero), 0, 15).astype(np.uint8)
    if misfit.size:
        q = unpack_nibbles(packed[misfit]).reshape(-1, GROUP)
        again = fit(q * scale[misfit, None] + minimum[misfit, None], 15)
        packed[misfit] = pack_nibbles(again.packed.reshape(-1)).reshape(-1, 16)
        zero_points[misfit], rounded[misfit] = again.zero_points, again.scale
    # A minimum that is not finite would hide behind its clipped zero point.
    rounded[~np.isfinite(minimum)] = np.nan
    residual = np.nan_to_num(minimum + zero_points * divisor)
    residual[misfit] = 0
    return Groups(packed, zero_points, rounded, residual)


def fit(values: Floats, steps: int) -> Groups:
    """float32 [groups, 32] → q in 0 … `steps`, one a byte. |error| ≤ scale / 2 for every weight.

    The scale is rounded up to float16, so that `steps` of them always span the range.
    """
    low = np.minimum(values.min(axis=1), 0)
    high = np.maximum(values.max(axis=1), 0)
    exact = (high - low) / steps
    scale = exact.astype(np.float16)
    scale = np.where(_single(scale) < exact, np.nextafter(scale, np.float16(np.inf)), scale)
    divisor = np.where(scale == 0, 1, _single(scale))
    zero = np.rint(-low / divisor)
    q = np.clip(np.rint(values / divisor[:, None]) + zero[:, None], 0, steps)
    return Groups(np.nan_to_num(q).astype(np.uint8), np.nan_to_num(zero).astype(np.uint8), scale)


def _half_at(blocks: Bytes, offset: int) -> Halves:
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").reshape(-1).astype(np.float16)


def _single(halves: Halves) -> Floats:
    return halves.astype(np.float32)


def floats(data: Bytes, kind: GGMLQuantizationType) -> Floats:
    """Any bytes of a type as flat float32."""
    plain = {_Q.F32: np.float32, _Q.F16: np.float16}.get(kind)
    flat = np.ascontiguousarray(data).reshape(-1)
    return np.asarray(dequantize(flat if plain is None else flat.view(plain), kind), np.float32).reshape(-1)


def _interleave_halves(nibbles: Bytes) -> Bytes:
    """[groups, 16] bytes with element i low and i + 16 high → element 2i low and 2i + 1 high."""
    pairs = np.ascontiguousarray(nibbles).view("<u2")
    low = (pairs & 0x0F) | (pairs >> 4 & 0xF0)
    high = (pairs >> 4 & 0x0F) | (pairs >> 8 & 0xF0)
    return np.concatenate([low, high], axis=1).astype(np.uint8)


def pack_nibbles(values: Bytes) -> Bytes:
    """Flat values 0 … 15 → two a byte, the even index low; an odd count is padded with 0."""
    flat = np.pad(values, (0, values.size % 2)) if values.size % 2 else values
    return flat[0::2] | flat[1::2] * np.uint8(16)


def unpack_nibbles(packed: Bytes) -> Bytes:
    """Two values a byte, the low half first → flat values."""
    flat = packed.reshape(-1)
    return np.stack([flat & 15, flat >> 4], axis=1).reshape(-1)


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """12 bytes [blocks, 12] → eight 6-bit scales and eight 6-bit minima, float32 [blocks, 8] each.

    Bytes 0-3 and 4-7 hold the first four of both in their low 6 bits and the top 2 bits of the last four;
    bytes 8-11 hold the low 4 bits of the last four, scales low and minima high.
    """
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)
