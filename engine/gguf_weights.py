"""GGUF tensors as weights of the graph: 4-bit stays 4-bit, 8-bit stays 8-bit, in groups of 32 columns.

A compressed weight is w = (q - z) · s with unsigned whole q and z, and a float16 scale s per group. Whole zero
points keep the CPU plugin on its integer path. Where a file stores a minimum instead (w = q · s + m), z is -m / s
rounded, and what the rounding moved the group by, r = m + z · s, is kept in extra columns: since r is the same
for all 32 weights of a group, W · x = (q - z) · s · x + R · (sums of x over its groups).

    Q4_0                exact, z = 8                        Q5_0, Q8_0          exact in 8 bits, z = 16 and 128
    Q4_1, Q4_K          q kept, z rounded, r kept in 4 bits  Q5_1, Q5_K, Q6_K   fitted again with 8 bits
    F32, F16, BF16      float16

A 4-bit group whose z would leave 0 … 15 is fitted again. Fitting takes the range of the group, stretched to
include 0, and divides it into 15 or 255 steps; each weight then moves by at most half a step. Block layouts are
those of ggml (`ggml-common.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from .gguf_source import Tensor
from .model_errors import corrupt, unsupported

GROUP = 32
CHUNK_ELEMENTS = 1 << 20  # keeps each temporary of a conversion at a few megabytes

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
Floats = NDArray[np.float32]
RowOrder = NDArray[np.intp]

_Q = GGMLQuantizationType


@dataclass(frozen=True, slots=True, eq=False)
class CompressedWeight:
    """A matrix [rows, columns] as w = (q - zero_point) · scale, columns in groups of 32.

    `packed` holds q and `zero_points` holds z, uint8 and flat: with 8 bits one value a byte, with 4 bits two,
    the even index in the low half. `scale` is float16 [rows, groups, 1]. `residual_columns` more columns follow
    the matrix, padded to whole groups: column g is to be multiplied by the sum of the input over its group g.
    """

    rows: int
    columns: int
    bits: int
    packed: Bytes
    zero_points: Bytes
    scale: Halves
    residual_columns: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of q: (rows, groups, 32). That of zero points and scales ends in 1."""
        return self.rows, (self.columns + self.residual_columns) // GROUP, GROUP

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.zero_points.nbytes + self.scale.nbytes

    def values(self) -> Floats:
        """The weights as float32 [rows, columns]; for tests and small matrices."""
        unpack = _unpack_nibbles if self.bits == 4 else np.asarray
        rows, groups, _ = self.shape
        q = unpack(self.packed).reshape(self.shape).astype(np.float32)
        zero = unpack(self.zero_points)[: rows * groups].reshape(rows, groups, 1).astype(np.float32)
        held: Floats = ((q - zero) * self.scale.astype(np.float32)).reshape(rows, -1)
        main, residuals = held[:, : self.columns], held[:, self.columns :]
        if not self.residual_columns:
            return main
        return main + np.repeat(residuals[:, : self.columns // GROUP], GROUP, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeight:
    """A matrix that is not compressed: float16 [rows, columns]."""

    values: Halves


@dataclass(frozen=True, slots=True)
class _Groups:
    """Converted groups: q packed [groups, 16 or 32], zero points [groups], scales [groups].

    `residual` [groups] is what rounding the zero points moved each group by; None where they are exact.
    """

    packed: Bytes
    zero_points: Bytes
    scale: Halves
    residual: Floats | None = None


def scheme(kind: GGMLQuantizationType) -> str:
    """How a matrix of this type is held, in words for a person."""
    return {
        _Q.F32: "float32 as float16",
        _Q.F16: "float16 as it is",
        _Q.BF16: "bfloat16 as float16",
        _Q.Q4_0: "kept 4-bit, group 32",
        _Q.Q4_1: "kept 4-bit, group 32, minimum as a whole zero point and a 4-bit rest",
        _Q.Q4_K: "kept 4-bit, group 32, minimum as a whole zero point and a 4-bit rest",
        _Q.Q5_0: "kept exactly in 8-bit, group 32",
        _Q.Q5_1: "re-quantised to 8-bit, group 32",
        _Q.Q5_K: "re-quantised to 8-bit, group 32",
        _Q.Q6_K: "re-quantised to 8-bit, group 32",
        _Q.Q8_0: "kept 8-bit, group 32",
    }[kind]


def weight_kind(kind: GGMLQuantizationType) -> str:
    """The element type that a matrix of this type has in the graph: u4, u8 or f16."""
    return f"u{_CONVERTERS[kind][0]}" if kind in _CONVERTERS else "f16"


def residual_columns(kind: GGMLQuantizationType, columns: int, round_minima: bool = False) -> int:
    """How many columns a matrix of this type is widened by: one a group, padded to whole groups."""
    return -(-columns // GROUP**2) * GROUP if kind in _WITH_MINIMA and not round_minima else 0


def held_bytes(kind: GGMLQuantizationType, rows: int, columns: int, round_minima: bool = False) -> int:
    """The memory that a matrix takes: values, and zero points and scales of each group."""
    if kind not in _CONVERTERS:
        return rows * columns * 2
    elements = rows * (columns + residual_columns(kind, columns, round_minima))
    bits = _CONVERTERS[kind][0]
    return elements * bits // 8 + elements // GROUP * bits // 8 + elements // GROUP * 2


def weight(
    tensor: Tensor, row_order: RowOrder | None = None, round_minima: bool = False
) -> CompressedWeight | DenseWeight:
    """The matrix in the form that its type is held in; see `quantised` and `half`."""
    if tensor.type in _CONVERTERS:
        return quantised(tensor, row_order, round_minima)
    return half(tensor, row_order)


def quantised(
    tensor: Tensor, row_order: RowOrder | None = None, round_minima: bool = False
) -> CompressedWeight:
    """A quantised [rows, columns] tensor as a compressed weight whose row i is the file's `row_order[i]`.

    `round_minima` leaves out what rounding the zero points moved: faster, and further from the file's model.
    Temporaries stay at a few megabytes. Raises ModelFileError: `corrupt_model` when a scale is not finite,
    `unsupported_model` when one is beyond float16.
    """
    rows, columns = tensor.shape
    bits, convert = _CONVERTERS[tensor.type]
    extra = residual_columns(tensor.type, columns, round_minima)
    groups = (columns + extra) // GROUP
    packed = np.empty((rows, groups, GROUP * bits // 8), np.uint8)
    zero_points = np.empty((rows, groups), np.uint8)
    scale = np.empty((rows, groups), np.float16)
    done = 0
    with np.errstate(over="ignore", invalid="ignore"):  # _checked looks at what comes out
        for blocks in _chunks(tensor, row_order):
            found = _by_row(convert(blocks), columns // GROUP, bool(extra))
            there = slice(done, done + len(found.scale))
            packed[there], zero_points[there] = found.packed, found.zero_points
            scale[there] = _checked(found.scale, tensor.name)
            done = there.stop
    return CompressedWeight(
        rows,
        columns,
        bits,
        packed.reshape(-1),
        _pack_nibbles(zero_points.reshape(-1)) if bits == 4 else zero_points.reshape(-1),
        scale.reshape(rows, groups, 1),
        extra,
    )


def joined(parts: Sequence[CompressedWeight]) -> CompressedWeight:
    """Weights of one kind and width, their rows one behind the other. An odd number of 4-bit zero points in one
    part would not end on a byte; groups and rows of real models come in even numbers."""
    first = parts[0]
    assert all(
        (w.bits, w.columns, w.residual_columns) == (first.bits, first.columns, first.residual_columns)
        for w in parts
    )
    assert all(w.bits == 8 or w.shape[0] * w.shape[1] % 2 == 0 for w in parts[:-1])
    return CompressedWeight(
        sum(w.rows for w in parts),
        first.columns,
        first.bits,
        np.concatenate([w.packed for w in parts]),
        np.concatenate([w.zero_points for w in parts]),
        np.concatenate([w.scale for w in parts]),
        first.residual_columns,
    )


def half(tensor: Tensor, row_order: RowOrder | None = None) -> DenseWeight:
    """An F32, F16 or BF16 matrix as float16 [rows, columns], rows as `row_order` says.

    Values below float16's range lose precision; raises ModelFileError `unsupported_model` for any above it and
    `corrupt_model` for NaN or infinity.
    """
    rows, columns = tensor.shape
    result = np.empty((rows, columns), np.float16)
    done = 0
    with np.errstate(over="ignore"):
        for chunk in _chunks(tensor, row_order):
            values = _floats(chunk, tensor.type).reshape(-1, columns)
            _require_finite(values, tensor.name)
            result[done : done + len(values)] = _checked(values.astype(np.float16), tensor.name)
            done += len(values)
    return DenseWeight(result)


def dense(tensor: Tensor, row_order: RowOrder | None = None) -> Floats:
    """The whole tensor as float32 in its own shape (norms, biases); `row_order` re-orders the first axis."""
    values = _floats(tensor.data, tensor.type).reshape(tensor.shape)
    _require_finite(values, tensor.name)
    return values if row_order is None else values[row_order]


# ---- blocks of one type → groups of 32


def _q4_0(blocks: Bytes) -> _Groups:
    scale = _half_at(blocks, 0)
    return _Groups(_interleave_halves(blocks[:, 2:]), np.full(len(blocks), 8, np.uint8), scale)


def _q4_1(blocks: Bytes) -> _Groups:
    scale, minimum = _half_at(blocks, 0), _half_at(blocks, 2)
    return _with_whole_zero_points(_interleave_halves(blocks[:, 4:]), _single(scale), _single(minimum))


def _q4_k(blocks: Bytes) -> _Groups:
    """A block of 256: d, dmin, eight 6-bit scales and minima in 12 bytes, then 4 × 32 bytes of two groups each."""
    factors, minima = _k_scales(blocks[:, 4:16])
    scale = (_single(_half_at(blocks, 0))[:, None] * factors).reshape(-1)
    minimum = (_single(_half_at(blocks, 2))[:, None] * minima).reshape(-1)
    pairs = blocks[:, 16:].reshape(-1, 4, 32)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1)
    return _with_whole_zero_points(_pack_nibbles(nibbles).reshape(-1, 16), scale, -minimum)


def _q5_0(blocks: Bytes) -> _Groups:
    """d, 32 high bits, 16 bytes of low halves."""
    high = np.unpackbits(np.ascontiguousarray(blocks[:, 2:6]), axis=1, bitorder="little")
    low = np.concatenate([blocks[:, 6:] & 15, blocks[:, 6:] >> 4], axis=1)
    return _Groups(low | high * np.uint8(16), np.full(len(blocks), 16, np.uint8), _half_at(blocks, 0))


def _q8_0(blocks: Bytes) -> _Groups:
    # int8 q + 128 is the same bits with the sign bit flipped.
    return _Groups(blocks[:, 2:] ^ np.uint8(128), np.full(len(blocks), 128, np.uint8), _half_at(blocks, 0))


def _fitted_from(kind: GGMLQuantizationType) -> Callable[[Bytes], _Groups]:
    def convert(blocks: Bytes) -> _Groups:
        return _fit(_floats(blocks, kind).reshape(-1, GROUP), 255)

    return convert


_CONVERTERS: Mapping[GGMLQuantizationType, tuple[int, Callable[[Bytes], _Groups]]] = {
    _Q.Q4_0: (4, _q4_0),
    _Q.Q4_1: (4, _q4_1),
    _Q.Q4_K: (4, _q4_k),
    _Q.Q5_0: (8, _q5_0),
    _Q.Q8_0: (8, _q8_0),
    _Q.Q5_1: (8, _fitted_from(_Q.Q5_1)),
    _Q.Q5_K: (8, _fitted_from(_Q.Q5_K)),
    _Q.Q6_K: (8, _fitted_from(_Q.Q6_K)),
}


_WITH_MINIMA = frozenset({_Q.Q4_1, _Q.Q4_K})


def _by_row(found: _Groups, groups: int, with_residual: bool) -> _Groups:
    """Groups in rows of `groups`: packed [rows, groups, …], zero points and scales [rows, groups]. Residuals are
    quantised and stand behind each row as groups of their own, unless they are to be left out."""
    main = _Groups(
        found.packed.reshape(-1, groups, found.packed.shape[-1]),
        found.zero_points.reshape(-1, groups),
        found.scale.reshape(-1, groups),
    )
    if found.residual is None or not with_residual:
        return main
    residual = np.pad(found.residual.reshape(-1, groups), ((0, 0), (0, -groups % GROUP)))
    rest = _fit(residual.reshape(-1, GROUP), 15)
    rows, extra = residual.shape[0], residual.shape[1] // GROUP
    return _Groups(
        np.concatenate(
            [main.packed, _pack_nibbles(rest.packed.reshape(-1)).reshape(rows, extra, -1)], axis=1
        ),
        np.concatenate([main.zero_points, rest.zero_points.reshape(rows, extra)], axis=1),
        np.concatenate([main.scale, rest.scale.reshape(rows, extra)], axis=1),
    )


def _with_whole_zero_points(packed: Bytes, scale: Floats, minimum: Floats) -> _Groups:
    """4-bit groups w = q · scale + minimum, q packed [groups, 16]; those without a zero point in 0 … 15 are
    fitted again. A negative scale is as good as a positive one."""
    rounded = scale.astype(np.float16)
    divisor = _single(rounded)
    zero = np.rint(-minimum / np.where(divisor == 0, 1, divisor))
    misfit = np.flatnonzero((divisor == 0) & (minimum != 0) | (zero < 0) | (zero > 15))
    zero_points = np.clip(np.nan_to_num(zero), 0, 15).astype(np.uint8)
    if misfit.size:
        q = _unpack_nibbles(packed[misfit]).reshape(-1, GROUP)
        again = _fit(q * scale[misfit, None] + minimum[misfit, None], 15)
        packed[misfit] = _pack_nibbles(again.packed.reshape(-1)).reshape(-1, 16)
        zero_points[misfit], rounded[misfit] = again.zero_points, again.scale
    # A minimum that is not finite would hide behind its clipped zero point.
    rounded[~np.isfinite(minimum)] = np.nan
    residual = np.nan_to_num(minimum + zero_points * divisor)
    residual[misfit] = 0
    return _Groups(packed, zero_points, rounded, residual)


def _fit(values: Floats, steps: int) -> _Groups:
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
    return _Groups(np.nan_to_num(q).astype(np.uint8), np.nan_to_num(zero).astype(np.uint8), scale)


# ---- bytes


def _chunks(tensor: Tensor, row_order: RowOrder | None) -> Iterator[Bytes]:
    """The rows in order, some at a time, as blocks [blocks, bytes of a block]."""
    rows, columns = tensor.shape
    block_bytes = GGML_QUANT_SIZES[tensor.type][1]
    lines = tensor.data.reshape(rows, -1)
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        chosen = slice(start, start + step) if row_order is None else row_order[start : start + step]
        yield lines[chosen].reshape(-1, block_bytes)


def _half_at(blocks: Bytes, offset: int) -> Halves:
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").reshape(-1).astype(np.float16)


def _single(halves: Halves) -> Floats:
    return halves.astype(np.float32)


def _floats(data: Bytes, kind: GGMLQuantizationType) -> Floats:
    plain = {_Q.F32: np.float32, _Q.F16: np.float16}.get(kind)
    flat = np.ascontiguousarray(data).reshape(-1)
    return np.asarray(dequantize(flat if plain is None else flat.view(plain), kind), np.float32).reshape(-1)


def _interleave_halves(nibbles: Bytes) -> Bytes:
    """[groups, 16] bytes with element i low and i + 16 high → element 2i low and 2i + 1 high."""
    pairs = np.ascontiguousarray(nibbles).view("<u2")
    low = (pairs & 0x0F) | (pairs >> 4 & 0xF0)
    high = (pairs >> 4 & 0x0F) | (pairs >> 8 & 0xF0)
    return np.concatenate([low, high], axis=1).astype(np.uint8)


def _pack_nibbles(values: Bytes) -> Bytes:
    """Flat values 0 … 15 → two a byte, the even index low; an odd count is padded with 0."""
    flat = np.pad(values, (0, values.size % 2)) if values.size % 2 else values
    return flat[0::2] | flat[1::2] * np.uint8(16)


def _unpack_nibbles(packed: Bytes) -> Bytes:
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


def _checked(halves: Halves, name: str) -> Halves:
    if np.isnan(halves).any():
        raise corrupt(f"tensor {name} holds values that are not numbers")
    if np.isinf(halves).any():
        raise unsupported(f"tensor {name} holds values beyond the range of float16")
    return halves


def _require_finite(values: Floats, name: str) -> None:
    if not np.isfinite(values).all():
        raise corrupt(f"tensor {name} holds values that are not finite")
