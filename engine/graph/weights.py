"""GGUF tensors as constant sub-graphs that the plugins keep compressed.

    Constant u4|u8 [rows, groups, 32] → Convert f32 → Subtract(Convert f32(zero point)) → Multiply(scale f32)
    → Reshape [rows, cols] → MatMul(x, W, transposed)

Source of the pattern: OpenVINO's weight-decompression fusion; the runtime layer becomes FullyConnected with u4 or
u8 weights. Integer zero points keep the int8 path, fractional ones silently lose it. Scales are float32 here although
their values are those of float16: the plugin widens them all while it compiles, and would hold both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from ..gguf.blocks import GROUP
from ..gguf.source import GgufModel
from ..gguf.weights import (
    CompressedWeight,
    DenseWeight,
    RowOrder,
    dense,
    joined,
    residual_columns,
    weight,
)
from ..protocol import Minima
from .ops import Node, constant

_ROUNDED_WHEN_BALANCED = ("attn_output", "ffn_gate", "ffn_up")


class Rows(NamedTuple):
    """The rows of a matrix of the file, in `order` where that is given."""

    name: str
    order: RowOrder | None = None


class GraphWeights:
    """Hands out the tensors of one model as graph nodes; what is asked for twice is one node.

    `minima` says which weights keep what rounding their zero points would lose.
    """

    def __init__(self, source: GgufModel, minima: Minima = "kept") -> None:
        self._source = source
        self._minima: Minima = minima
        self._shared: dict[str, Node] = {}

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def vector(self, name: str, order: RowOrder | None = None) -> NDArray[np.float32]:
        """A norm weight or bias, float32, its entries in `order`."""
        return np.ascontiguousarray(dense(self._source.tensor(name), order))

    def residual_columns(self, name: str) -> int:
        """By how many columns the matrix is wider than its input."""
        tensor = self._source.tensors[name]
        return residual_columns(tensor.type, tensor.shape[1], rounds_minima(self._minima, name))

    def joinable(self, *names: str) -> bool:
        """Whether the matrices are held in the same way, so that one product can stand for all."""
        return len({self._source.tensors[name].type for name in names}) == 1

    def matrix(self, *parts: Rows) -> Node:
        """Weights as one float32 node, their rows one behind the other, stored in as few bits as they can be.

        The node is [rows, columns], or [rows, columns + residual columns] where the file's type has minima (see
        `gguf.weights`): multiply those by `widened` inputs. Several parts must be `joinable`.
        """
        key = " ".join(part.name for part in parts)
        if key not in self._shared:
            held = [
                weight(self._source.tensor(part.name), part.order, rounds_minima(self._minima, part.name))
                for part in parts
            ]
            self._shared[key] = _as_node(held)
            # The file is read once; its pages would lie in memory beside what was made of them.
            self._source.release_pages()
        return self._shared[key]


def rounds_minima(minima: Minima, name: str) -> bool:
    """Whether the weight called `name` gives up the exact minima of its groups.

    `kept`: none does; `rounded`: all do. `balanced` keeps them where a rounded one harms most for the time it saves:
    queries, keys and values (one widened input for three weights), the second half of the feed-forward, embedding and
    head. On SmolLM2 that is two thirds of the divergence for half of the cost.
    """
    if minima == "balanced":
        return any(part in name for part in _ROUNDED_WHEN_BALANCED)
    return minima == "rounded"


def _as_node(held: list[CompressedWeight | DenseWeight]) -> Node:
    compressed = [w for w in held if isinstance(w, CompressedWeight)]
    if compressed:
        return _compressed(compressed[0] if len(held) == 1 else joined(compressed))
    return _half(np.concatenate([w.values for w in held if isinstance(w, DenseWeight)]))


class Widener:
    """Appends to inputs the sums that residual columns are multiplied by; once for all weights an input feeds."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], Node] = {}
        self._wide: dict[str, Node] = {}

    def __call__(self, x: Node, residual_columns: int) -> Node:
        """x and the sums over its groups of 32, filled up with zeros to `residual_columns`."""
        if not residual_columns:
            return x
        key = x.get_friendly_name()
        if key not in self._wide:
            columns = x.get_output_partial_shape(0)[-1].get_length()
            sums = ops.matmul(x, self._summing(columns, residual_columns), False, True)
            self._wide[key] = ops.concat([x, sums], -1)
        return self._wide[key]

    def _summing(self, columns: int, residual_columns: int) -> Node:
        """[residual_columns, columns]: row g adds up group g; rows behind the last group are zero.

        A product where a reduction would do: it is one node, the reduction and what brings it into shape are four,
        and nodes are what a step of one token spends its time on.
        """
        key = columns, residual_columns
        if key not in self._sums:
            rows = np.arange(residual_columns)[:, None] == np.arange(columns) // GROUP
            self._sums[key] = ops.constant(rows.astype(np.float32))
        return self._sums[key]


def looked_up(rows: Node, columns: int, residual_columns: int) -> Node:
    """Rows of a widened embedding [batch, tokens, columns + residual_columns] → [batch, tokens, columns]."""
    if not residual_columns:
        return rows
    groups = columns // GROUP
    parts = ops.variadic_split(rows, constant(2), constant([columns, groups, residual_columns - groups]))
    values = ops.reshape(parts.output(0), constant([0, 0, groups, GROUP]), True)
    whole = ops.add(values, ops.unsqueeze(parts.output(1), constant(-1)))
    return ops.reshape(whole, constant([0, 0, columns]), True)


def _half(values: NDArray[np.float16]) -> Node:
    return ops.convert(_owned(values, ov.Type.f16, values.shape), "f32")


def _compressed(held: CompressedWeight) -> Node:
    kind = ov.Type.u4 if held.bits == 4 else ov.Type.u8
    rows, groups, _ = held.shape
    zero_points = _zero_points(held, kind)
    centred = ops.subtract(ops.convert(_owned(held.packed, kind, held.shape), "f32"), zero_points)
    scaled = ops.multiply(centred, _owned(held.scale.astype(np.float32), ov.Type.f32, (rows, groups, 1)))
    return ops.reshape(scaled, constant([rows, groups * GROUP]), False)


def _zero_points(held: CompressedWeight, kind: ov.Type) -> Node:
    """Zero points as float32; a single one where all are equal, which takes less memory to compile."""
    first = held.zero_points[:1]
    if (held.zero_points == first).all():
        return ops.convert(_owned(first, kind, (1, 1, 1)), "f32")
    return ops.convert(_owned(held.zero_points, kind, (*held.shape[:2], 1)), "f32")


def _owned(data: NDArray[np.generic], kind: ov.Type, shape: tuple[int, ...]) -> Node:
    """A constant that owns a copy of `data`, which holds the elements as `kind` packs them."""
    return ov.op.Constant(ov.Tensor(data.reshape(-1), ov.Shape(list(shape)), kind), shared_memory=False)
