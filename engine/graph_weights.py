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
from .gguf_weights import CompressedWeight, DenseWeight, RowOrder, dense, weight
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

    def matrix(self, name: str, order: RowOrder | None = None) -> Node:
        """A weight as a float32 [rows, columns] node, its rows in `order`, stored in as few bits as it can be."""
        if name not in self._shared:
            held = weight(self._source.tensor(name), order)
            self._shared[name] = _half(held) if isinstance(held, DenseWeight) else _compressed(held)
            self.kinds[name] = "f16" if isinstance(held, DenseWeight) else f"u{held.bits}"
        return self._shared[name]


def _half(held: DenseWeight) -> Node:
    return ops.convert(_owned(held.values, ov.Type.f16, held.values.shape), "f32")


def _compressed(held: CompressedWeight) -> Node:
    kind = ov.Type.u4 if held.bits == 4 else ov.Type.u8
    per_group = (*held.shape[:2], 1)
    zero_points = ops.convert(_owned(held.zero_points, kind, per_group), "f16")
    centred = ops.subtract(ops.convert(_owned(held.packed, kind, held.shape), "f16"), zero_points)
    scaled = ops.multiply(centred, _owned(held.scale, ov.Type.f16, per_group))
    return ops.convert(ops.reshape(scaled, constant([held.rows, held.columns]), False), "f32")


def _owned(data: NDArray[np.generic], kind: ov.Type, shape: tuple[int, ...]) -> Node:
    """A constant that owns a copy of `data`, which holds the elements as `kind` packs them."""
    return ov.op.Constant(ov.Tensor(data.reshape(-1), ov.Shape(list(shape)), kind), shared_memory=False)
