"""The graph of a BERT-like encoder, from token ids to one vector a text.

Inputs: input_ids, attention_mask int32 [texts, tokens], the mask 1 for a token and 0 for padding behind a text.
Output: float32 [texts, hidden]. Post-norm layers with learned positions, as transformers' `BertModel`.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from ..gguf.weights import dense
from ..graph.ops import Node, constant, heads_first, parameter, split_heads
from .config import EncoderConfig, Pooling
from .source import EncoderModel

# Raise it whenever the graph of the same file changes: it is part of fingerprints.
BUILDER_VERSION = 1
_LEAST_NORM = 1e-12
_HIDDEN = 1e30
_QKV = ("attn_q", "attn_k", "attn_v")


def build_encoder(source: EncoderModel) -> ov.Model:
    """The graph of an opened file. Raises ModelFileError for weights that are not finite."""
    return _Encoder(source).build()


class _Encoder:
    def __init__(self, source: EncoderModel) -> None:
        self.config: EncoderConfig = source.config
        self.source = source
        self.ids = parameter("input_ids", [-1, -1], np.int32)
        self.mask = parameter("attention_mask", [-1, -1], np.int32)
        self.weights = ops.convert(self.mask, "f32")
        # -1e30 for padding, so that its softmax is 0.
        hidden = ops.multiply(ops.subtract(self.weights, _float(1.0)), _float(_HIDDEN))
        self.hidden_scores = ops.unsqueeze(hidden, constant([1, 2]))

    def build(self) -> ov.Model:
        x = self.embedded()
        for layer in range(self.config.layers):
            x = self.norm(ops.add(x, self.attention(layer, x)), f"blk.{layer}.attn_output_norm")
            x = self.norm(ops.add(x, self.feed_forward(layer, x)), f"blk.{layer}.layer_output_norm")
        vectors = self.pooled(x)
        if self.config.normalize:
            vectors = ops.normalize_l2(vectors, constant([1]), _LEAST_NORM, "max")
        return ov.Model([ops.result(vectors)], [self.ids, self.mask], "encoder")

    def embedded(self) -> Node:
        """Tokens, positions and the first token type, which is that of a text alone."""
        tokens = ops.gather(self.matrix("token_embd"), self.ids, constant(0))
        length = ops.gather(ops.shape_of(self.ids, "i32"), constant([1]), constant(0))
        positions = ops.slice(
            self.matrix("position_embd"), constant([0], np.int32), length, constant([1], np.int32)
        )
        first_type = ops.constant(self.array("token_types.weight")[:1])
        x = ops.add(ops.add(tokens, positions), first_type)
        return self.norm(x, "token_embd_norm")

    def attention(self, layer: int, x: Node) -> Node:
        """Every token attends to every token of its text."""
        config = self.config
        flat = ops.variadic_split(self.linear(layer, x, *_QKV), constant(2), constant([config.hidden] * 3))
        query, key, value = (
            heads_first(split_heads(y, config.heads, config.head_dim)) for y in flat.outputs()
        )
        attended = ops.scaled_dot_product_attention(query, key, value, self.hidden_scores)
        joined = ops.reshape(heads_first(attended), constant([0, 0, config.hidden]), True)
        return self.linear(layer, joined, "attn_output")

    def feed_forward(self, layer: int, x: Node) -> Node:
        return self.linear(layer, ops.gelu(self.linear(layer, x, "ffn_up"), "ERF"), "ffn_down")

    def pooled(self, x: Node) -> Node:
        """[texts, tokens, hidden] → [texts, hidden]."""
        match self.config.pooling:
            case Pooling.CLS:
                return ops.gather(x, constant(0), constant(1))
            case Pooling.LAST:
                last = ops.subtract(ops.reduce_sum(self.mask, constant([1])), constant(1, np.int32))
                return ops.gather(x, last, constant(1), batch_dims=1)
            case Pooling.MEAN:
                counts = ops.reduce_sum(self.weights, constant([1]), True)
                weights = ops.unsqueeze(ops.divide(self.weights, counts), constant(1))
                return ops.squeeze(ops.matmul(weights, x, False, False), constant([1]))

    def norm(self, x: Node, name: str) -> Node:
        """Layer normalisation over the last axis (Ba et al. 2016)."""
        normed = ops.mvn(x, constant([-1]), True, self.config.norm_eps, "inside_sqrt")
        scaled = ops.multiply(normed, ops.constant(self.array(f"{name}.weight")))
        return ops.add(scaled, ops.constant(self.array(f"{name}.bias")))

    def linear(self, layer: int, x: Node, *names: str) -> Node:
        """x · Wᵀ + b for the weights side by side."""
        stems = [f"blk.{layer}.{name}" for name in names]
        matrix = np.concatenate([self.array(f"{stem}.weight") for stem in stems])
        bias = np.concatenate([self.array(f"{stem}.bias") for stem in stems])
        return ops.add(ops.matmul(x, ops.constant(matrix), False, True), ops.constant(bias))

    def matrix(self, name: str) -> Node:
        return ops.constant(self.array(f"{name}.weight"))

    def array(self, name: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(dense(self.source.tensor(name)))


def _float(value: float) -> Node:
    return constant(value, np.float32)
