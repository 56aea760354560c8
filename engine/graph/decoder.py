"""The decoder graph of the llama family: llama, mistral, qwen2, qwen3, smollm3.

Built with stateful KV (ReadValue and Assign), as the paged transformation expects it. The differences between
the family's members are flags of `ModelConfig`; there is one builder.

Inputs: input_ids, position_ids, attention_mask int64 [batch, tokens]; beam_idx int32 [batch]; logit_rows int64
[rows]. Output: logits float32 [rows, vocab]. After lowering the tokens of all sequences lie along axis 0, and
`logit_rows` picks those that go through the head: all rows of a 512-token chunk would cost four times as much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino import opset6

from ..gguf.model_config import ModelConfig, half_row_order
from .ops import Node, Rotary, constant, heads_first, parameter, repeat_kv, rms_norm, split_heads
from .weights import GraphWeights, Rows, Widener, looked_up

# Raise it whenever the graph of the same file changes: it is part of cache keys and fingerprints.
BUILDER_VERSION = 6

QKV = ("attn_q", "attn_k", "attn_v")


def build_decoder(config: ModelConfig, weights: GraphWeights) -> ov.Model:
    """The stateful graph of a model. Raises KeyError for a tensor that the file lacks."""
    return _Decoder(config, weights).build()


class _Decoder:
    def __init__(self, config: ModelConfig, weights: GraphWeights) -> None:
        self.config = config
        self.weights = weights
        self.ids = parameter("input_ids", [-1, -1], np.int64)
        self.positions = parameter("position_ids", [-1, -1], np.int64)
        self.mask = parameter("attention_mask", [-1, -1], np.int64)
        self.beam = parameter("beam_idx", [-1], np.int32)
        self.rows = parameter("logit_rows", [-1], np.int64)
        self.batch = ops.gather(ops.shape_of(self.ids), constant([0]), constant(0))
        self.rotary = Rotary(self.positions, config.rope)
        self.wide_mask = ops.convert(ops.unsqueeze(ops.unsqueeze(self.mask, constant(1)), constant(1)), "f32")
        self.sinks: list[Node] = []
        self.widener = Widener()

    def build(self) -> ov.Model:
        embedding = self.weights.matrix(Rows("token_embd.weight"))
        rows = ops.gather(embedding, ops.convert(self.ids, "i32"), constant(0, np.int32))
        x = looked_up(rows, self.config.hidden, self.weights.residual_columns("token_embd.weight"))
        for layer in range(self.config.layers):
            x = ops.add(x, self.attention(layer, self.norm(x, f"blk.{layer}.attn_norm")))
            x = ops.add(x, self.feed_forward(layer, self.norm(x, f"blk.{layer}.ffn_norm")))
        x = ops.gather(self.norm(x, "output_norm"), self.rows, constant(0))
        head = Rows("token_embd.weight" if self.config.tied_head else "output.weight")
        logits = self.product(x, head)
        logits.output(0).set_names({"logits"})
        inputs = [self.ids, self.positions, self.mask, self.beam, self.rows]
        return ov.Model([ops.result(logits)], self.sinks, inputs, self.config.architecture)

    def norm(self, x: Node, name: str) -> Node:
        return rms_norm(x, self.weights.vector(f"{name}.weight"), self.config.rms_eps)

    def linear(self, x: Node, *parts: Rows) -> Node:
        """x · Wᵀ + b for one weight, or for several side by side; names are without `.weight`."""
        y = self.product(x, *(Rows(f"{part.name}.weight", part.order) for part in parts))
        if self.weights.has(f"{parts[0].name}.bias"):
            biases = [self.weights.vector(f"{part.name}.bias", part.order) for part in parts]
            y = ops.add(y, ops.constant(np.concatenate(biases).reshape(1, 1, -1)))
        return y

    def product(self, x: Node, *parts: Rows) -> Node:
        wide = self.widener(x, self.weights.residual_columns(parts[0].name))
        return ops.matmul(wide, self.weights.matrix(*parts), False, True)

    def feed_forward(self, layer: int, x: Node) -> Node:
        """SwiGLU (Shazeer 2020). Joined like queries, keys and values, gate and up would keep the plugin from fusing
        the activation into the product, which costs a twentieth of a prefill."""
        parts = [Rows(f"blk.{layer}.{name}") for name in ("ffn_gate", "ffn_up")]
        gate, up = (self.linear(x, part) for part in parts)
        return self.linear(ops.multiply(ops.swish(gate), up), Rows(f"blk.{layer}.ffn_down"))

    def attention(self, layer: int, x: Node) -> Node:
        """Grouped-query attention over the cached and the new tokens."""
        config = self.config
        query, key, value = self.projections(layer, x)
        query, key = self.rotated(layer, "attn_q", query), self.rotated(layer, "attn_k", key)
        cached = self.cached(layer, "key", key), self.cached(layer, "value", heads_first(value))
        attended = ops.scaled_dot_product_attention(query, *cached, self.wide_mask)
        flat = ops.reshape(heads_first(attended), constant([0, 0, config.heads * config.head_dim]), True)
        return self.linear(flat, Rows(f"blk.{layer}.attn_output"))

    def projections(self, layer: int, x: Node) -> list[Node]:
        """Queries, keys and values [batch, tokens, heads, head_dim]."""
        config = self.config
        heads = [config.heads, config.kv_heads, config.kv_heads]
        orders = [half_row_order(n, config.head_dim) if config.interleaved_qk else None for n in heads[:2]]
        parts = [Rows(f"blk.{layer}.{name}", order) for name, order in zip(QKV, [*orders, None], strict=True)]
        sizes = [n * config.head_dim for n in heads]
        flat = self.side_by_side(x, parts, sizes)
        return [split_heads(y, n, config.head_dim) for y, n in zip(flat, heads, strict=True)]

    def side_by_side(self, x: Node, parts: Sequence[Rows], sizes: Sequence[int]) -> list[Node]:
        """Several weights on one input, each [batch, tokens, size].

        One product gives them all where the file holds them alike: several small ones cost decoding a tenth.
        """
        if not self.weights.joinable(*(f"{part.name}.weight" for part in parts)):
            return [self.linear(x, part) for part in parts]
        together = self.linear(x, *parts)
        return list(ops.variadic_split(together, constant(2), constant(list(sizes))).outputs())

    def rotated(self, layer: int, name: str, x: Node) -> Node:
        """Queries or keys, normalised per head where the model does so, then rotated, heads first."""
        if self.config.qk_norm:
            x = self.norm(x, f"blk.{layer}.{name}_norm")
        x = heads_first(x)
        return self.rotary(x) if self.config.rope_layers[layer] else x

    def cached(self, layer: int, kind: str, x: Node) -> Node:
        """Appends to the layer's KV state and repeats the heads for the queries that share them."""
        config = self.config
        shape = [constant([config.kv_heads]), constant([0]), constant([config.head_dim])]
        empty = ops.broadcast(constant(0.0, np.float32), ops.concat([self.batch, *shape], 0))
        name = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        past = opset6.read_value(
            empty,
            variable_id=name,
            variable_type=ov.Type.f32,
            variable_shape=ov.PartialShape([-1, config.kv_heads, -1, config.head_dim]),
        )
        both = ops.concat([ops.gather(past, self.beam, constant(0)), x], 2)
        self.sinks.append(opset6.assign(both, name))
        return repeat_kv(both, self.batch, config.kv_heads, config.heads // config.kv_heads, config.head_dim)
