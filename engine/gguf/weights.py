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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ..model_errors import corrupt, unsupported
from .blocks import (
    CONVERTERS,
    GROUP,
    WITH_MINIMA,
    Bytes,
    Floats,
    Groups,
    Halves,
    fit,
    floats,
    pack_nibbles,
    unpack_nibbles,
)
from .source import Tensor

CHUNK_ELEMENTS = 1 << 20  # keeps each temporary of a conversion at a few megabytes

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
        unpack = unpack_nibbles if self.bits == 4 else np.asarray
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


def scheme(kind: GGMLQuantizationType) -> str:
    """How a matrix of this type is held, in words for a person."""
    return {
        _Q.F32: "float32 as float16",
        _Q.F16: "float16 as it is",
        _Q.BF16: "bfloat16 as float16",
        _Q.Q4_0: "kept 4-bit, group 32",
        _Q.Q4_1: "kept 4-bit, group 32, the minimum as a whole zero point and, by the setting `minima`, a 4-bit rest",
        _Q.Q4_K: "kept 4-bit, group 32, the minimum as a whole zero point and, by the setting `minima`, a 4-bit rest",
        _Q.Q5_0: "kept exactly in 8-bit, group 32",
        _Q.Q5_1: "re-quantised to 8-bit, group 32",
        _Q.Q5_K: "re-quantised to 8-bit, group 32",
        _Q.Q6_K: "re-quantised to 8-bit, group 32",
        _Q.Q8_0: "kept 8-bit, group 32",
    }[kind]


def weight_kind(kind: GGMLQuantizationType) -> str:
    """The element type that a matrix of this type has in the graph: u4, u8 or f16."""
    return f"u{CONVERTERS[kind][0]}" if kind in CONVERTERS else "f16"


def residual_columns(kind: GGMLQuantizationType, columns: int, round_minima: bool = False) -> int:
    """How many columns a matrix of this type is widened by: one a group, padded to whole groups."""
    return -(-columns // GROUP**2) * GROUP if kind in WITH_MINIMA and not round_minima else 0


def held_bytes(kind: GGMLQuantizationType, rows: int, columns: int, round_minima: bool = False) -> int:
    """The memory that a matrix takes: values, and zero points and scales of each group."""
    if kind not in CONVERTERS:
        return rows * columns * 2
    elements = rows * (columns + residual_columns(kind, columns, round_minima))
    bits = CONVERTERS[kind][0]
    return elements * bits // 8 + elements // GROUP * bits // 8 + elements // GROUP * 2


def weight(
    tensor: Tensor, row_order: RowOrder | None = None, round_minima: bool = False
) -> CompressedWeight | DenseWeight:
    """The matrix in the form that its type is held in; see `quantised` and `half`."""
    if tensor.type in CONVERTERS:
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
    bits, convert = CONVERTERS[tensor.type]
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
        pack_nibbles(zero_points.reshape(-1)) if bits == 4 else zero_points.reshape(-1),
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
            values = floats(chunk, tensor.type).reshape(-1, columns)
            _require_finite(values, tensor.name)
            result[done : done + len(values)] = _checked(values.astype(np.float16), tensor.name)
            done += len(values)
    return DenseWeight(result)


def dense(tensor: Tensor, row_order: RowOrder | None = None) -> Floats:
    """The whole tensor as float32 in its own shape (norms, biases); `row_order` re-orders the first axis."""
    values = floats(tensor.data, tensor.type).reshape(tensor.shape)
    _require_finite(values, tensor.name)
    return values if row_order is None else values[row_order]


def _by_row(found: Groups, groups: int, with_residual: bool) -> Groups:
    """Groups in rows of `groups`: packed [rows, groups, …], zero points and scales [rows, groups]. Residuals are
    quantised and stand behind each row as groups of their own, unless they are to be left out."""
    main = Groups(
        found.packed.reshape(-1, groups, found.packed.shape[-1]),
        found.zero_points.reshape(-1, groups),
        found.scale.reshape(-1, groups),
    )
    if found.residual is None or not with_residual:
        return main
    residual = np.pad(found.residual.reshape(-1, groups), ((0, 0), (0, -groups % GROUP)))
    rest = fit(residual.reshape(-1, GROUP), 15)
    rows, extra = residual.shape[0], residual.shape[1] // GROUP
    return Groups(
        np.concatenate([main.packed, pack_nibbles(rest.packed.reshape(-1)).reshape(rows, extra, -1)], axis=1),
        np.concatenate([main.zero_points, rest.zero_points.reshape(rows, extra)], axis=1),
        np.concatenate([main.scale, rest.scale.reshape(rows, extra)], axis=1),
    )


def _chunks(tensor: Tensor, row_order: RowOrder | None) -> Iterator[Bytes]:
    """The rows in order, some at a time, as blocks [blocks, bytes of a block]."""
    rows, columns = tensor.shape
    block_bytes = GGML_QUANT_SIZES[tensor.type][1]
    lines = tensor.data.reshape(rows, -1)
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        chosen = slice(start, start + step) if row_order is None else row_order[start : start + step]
        yield lines[chosen].reshape(-1, block_bytes)


def _checked(halves: Halves, name: str) -> Halves:
    if np.isnan(halves).any():
        raise corrupt(f"tensor {name} holds values that are not numbers")
    if np.isinf(halves).any():
        raise unsupported(f"tensor {name} holds values beyond the range of float16")
    return halves


def _require_finite(values: Floats, name: str) -> None:
    if not np.isfinite(values).all():
        raise corrupt(f"tensor {name} holds values that are not finite")
