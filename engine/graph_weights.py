"""GGUF tensors as constant sub-graphs that the plugins keep compressed.

    Constant u4|u8 [rows, groups, 32] → Convert f16 → Subtract(Convert f16(zero point)) → Multiply(scale f16)
    → Reshape [rows, cols] → Convert f32 → MatMul(x, W, transposed)

Source of the pattern: OpenVINO's weight-decompression fusion; the runtime layer becomes FullyConnected with u4 or
u8 weights. Integer zero points keep the int8 path, fractional ones silently lose it.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from .gguf_source import GgufModel
from .gguf_weights import GROUP, CompressedWeight, DenseWeight, RowOrder, dense, residual_columns, weight
from .graph_ops import Node, constant


class GraphWeights:
    """Hands out the tensors of one model as graph nodes; a tensor asked for twice is one node.

    `kinds` tells for each matrix handed out how it is held: u4, u8 or f16.
    """

    def __init__(self, source: GgufModel) -> None:
        self._source = source
        self._shared: dict[str, Node] = {}
        self.kinds: dict[str, str] = {}

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def vector(self, name: str, order: RowOrder | None = None) -> NDArray[np.float32]:
        """A norm weight or bias, float32, its entries in `order`."""
        return np.ascontiguousarray(dense(self._source.tensor(name), order))

    def residual_columns(self, name: str) -> int:
        """By how many columns the matrix is wider than its input."""
        tensor = self._source.tensors[name]
        return residual_columns(tensor.type, tensor.shape[1])

    def matrix(self, name: str, order: RowOrder | None = None) -> Node:
        """A weight as a float32 node, its rows in `order`, stored in as few bits as it can be.

        The node is [rows, columns], or [rows, columns + residual columns] where the file's type has minima (see
        `gguf_weights`): multiply those by `widened` inputs.
        """
        if name not in self._shared:
            held = weight(self._source.tensor(name), order)
            self._shared[name] = _half(held) if isinstance(held, DenseWeight) else _compressed(held)
            self.kinds[name] = "f16" if isinstance(held, DenseWeight) else f"u{held.bits}"
        return self._shared[name]


def widened(x: Node, columns: int, residual_columns: int) -> Node:
    """[tokens, 1, columns] → the same and the sums over its groups of 32, padded to `residual_columns`.

    Tokens lie along axis 0, as they do after lowering. A reduction of three axes takes a kernel that is ten times
    as fast as the one for four.
    """
    grouped = ops.reshape(x, constant([-1, columns // GROUP, GROUP]), False)
    sums = ops.reduce_sum(grouped, constant(-1, np.int32), False)
    missing = residual_columns - columns // GROUP
    if missing:
        sums = ops.pad(sums, constant([0, 0]), constant([0, missing]), "constant", constant(0.0, np.float32))
    return ops.concat([x, ops.unsqueeze(sums, constant(1))], -1)


def looked_up(rows: Node, columns: int, residual_columns: int) -> Node:
    """Rows of a widened embedding [batch, tokens, columns + residual_columns] → [batch, tokens, columns]."""
    if not residual_columns:
        return rows
    groups = columns // GROUP
    parts = ops.variadic_split(rows, constant(2), constant([columns, groups, residual_columns - groups]))
    values = ops.reshape(parts.output(0), constant([0, 0, groups, GROUP]), True)
    whole = ops.add(values, ops.unsqueeze(parts.output(1), constant(-1)))
    return ops.reshape(whole, constant([0, 0, columns]), True)


def _half(held: DenseWeight) -> Node:
    return ops.convert(_owned(held.values, ov.Type.f16, held.values.shape), "f32")


def _compressed(held: CompressedWeight) -> Node:
    kind = ov.Type.u4 if held.bits == 4 else ov.Type.u8
    per_group = (*held.shape[:2], 1)
    zero_points = ops.convert(_owned(held.zero_points, kind, per_group), "f16")
    centred = ops.subtract(ops.convert(_owned(held.packed, kind, held.shape), "f16"), zero_points)
    scaled = ops.multiply(centred, _owned(held.scale, ov.Type.f16, per_group))
    return ops.convert(
        ops.reshape(scaled, constant([held.rows, held.shape[1] * held.shape[2]]), False), "f32"
    )


def _owned(data: NDArray[np.generic], kind: ov.Type, shape: tuple[int, ...]) -> Node:
    """A constant that owns a copy of `data`, which holds the elements as `kind` packs them."""
    return ov.op.Constant(ov.Tensor(data.reshape(-1), ov.Shape(list(shape)), kind), shared_memory=False)
