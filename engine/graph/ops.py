"""Small building blocks of decoder graphs in OpenVINO opset calls.

Everything is spelled the way the plugins' fusions look for it: a graph that computes the same in another spelling
runs several times slower (the census in `lowering` checks that the fusions happened).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..gguf.rope import Rope

Node: TypeAlias = ov.Node
END = 2**63 - 1  # "to the end" of a slice


def constant(value: ArrayLike, dtype: DTypeLike = np.int64) -> Node:
    return ops.constant(np.array(value, dtype=dtype))


def parameter(name: str, shape: Sequence[int], dtype: DTypeLike) -> Node:
    """A graph input; the paged transformation finds inputs by friendly name and by tensor name."""
    node = ops.parameter(list(shape), dtype, name=name)
    node.output(0).set_names({name})
    return node


def rms_norm(x: Node, weight: NDArray[np.float32], eps: float) -> Node:
    """x / sqrt(mean(x²) + eps) · weight over the last axis (Zhang and Sennrich 2019); fuses to RMS."""
    mean = ops.reduce_mean(ops.power(x, constant(2.0, np.float32)), constant(-1, np.int32), True)
    root = ops.sqrt(ops.add(mean, constant(eps, np.float32)))
    normed = ops.multiply(ops.divide(constant(1.0, np.float32), root), x)
    return ops.multiply(normed, ops.constant(weight))


def split_heads(x: Node, heads: int, head_dim: int) -> Node:
    """[batch, tokens, heads · head_dim] → [batch, tokens, heads, head_dim]."""
    return ops.reshape(x, constant([0, 0, heads, head_dim]), True)


def heads_first(x: Node) -> Node:
    """[batch, tokens, heads, dim] → [batch, heads, tokens, dim], and back again."""
    return ops.transpose(x, constant([0, 2, 1, 3], np.int32))


class Rotary:
    """Rotary position embedding in the rotate-half form (Su et al. 2021), which fuses to RoPE.

    Positions are [batch, tokens].
    """

    def __init__(self, positions: Node, rope: Rope) -> None:
        self._half = rope.dim // 2
        batch = ops.gather(ops.shape_of(positions), constant([0]), constant(0))
        column = constant(np.array(rope.frequencies).reshape(1, -1, 1), np.float32)
        shape = ops.concat([batch, constant([1]), constant([1])], 0)
        frequencies = ops.broadcast(column, shape, broadcast_spec="BIDIRECTIONAL")
        row = ops.convert(ops.unsqueeze(positions, constant(1)), "f32")
        angle = ops.transpose(ops.matmul(frequencies, row, False, False), constant([0, 2, 1], np.int32))
        angle = ops.concat([angle, angle], -1)
        self._cos = self._scaled(ops.cos(angle), rope.attention_factor)
        self._sin = self._scaled(ops.sin(angle), rope.attention_factor)

    def _scaled(self, x: Node, factor: float) -> Node:
        if factor != 1.0:
            x = ops.multiply(x, constant(factor, np.float32))
        return ops.unsqueeze(x, constant(1))

    def __call__(self, x: Node) -> Node:
        """Rotates x [batch, heads, tokens, dim]."""
        left = _last_axis(x, 0, self._half)
        right = ops.multiply(_last_axis(x, self._half, END), constant(-1.0, np.float32))
        turned = ops.concat([right, left], -1)
        return ops.add(ops.multiply(x, self._cos), ops.multiply(turned, self._sin))


def _last_axis(x: Node, start: int, stop: int) -> Node:
    return ops.slice(x, constant([start]), constant([stop]), constant([1]), constant([3]))


def repeat_kv(x: Node, batch: Node, kv_heads: int, repeats: int, head_dim: int) -> Node:
    """[batch, kv_heads, tokens, dim] → [batch, kv_heads · repeats, tokens, dim] for grouped queries."""
    if repeats == 1:
        return x
    length = ops.gather(ops.shape_of(x), constant([2]), constant(0))
    shape = ops.concat([batch, constant([kv_heads]), constant([repeats]), length, constant([head_dim])], 0)
    wide = ops.broadcast(ops.unsqueeze(x, constant(2)), shape, broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(wide, constant([0, kv_heads * repeats, -1, head_dim]), True)


def runtime_value(value: Any) -> Any:
    """The value inside an entry of a node's rt_info."""
    return value.value if isinstance(value, ov.OVAny) else value
