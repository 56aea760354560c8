"""What a decoder-only transformer of a supported family looks like, read from GGUF metadata.

The families differ in five facts only, all of them here: whether the converter interleaved the rotated pairs
of Q and K, Q/K norms, layers without rotary embedding, biases, and a head tied to the embedding. They follow
llama.cpp's `src/models/*.cpp` and `conversion/*.py`, and the modelling files of transformers. Anything in the
metadata that would change the computation and is not known here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model_errors import ModelFileError, corrupt, unsupported
from .header import TensorInfo
from .metadata import ArchitectureMetadata, Metadata
from .rope import Rope, original_context, read_rope

Shape = tuple[int, ...]
MAX_HEAD_DIM = 4096


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a family apart. `rope_free_every` n: the n-th, 2n-th … layer has no rotary embedding."""

    interleaved_qk: bool = False
    qk_norm: bool = False
    rope_free_every: int = 0


FAMILIES: Mapping[str, Family] = {
    "llama": Family(interleaved_qk=True),
    "mistral3": Family(interleaved_qk=True),
    "qwen2": Family(),
    "qwen3": Family(qk_norm=True),
    "smollm3": Family(interleaved_qk=True, rope_free_every=4),
}

# Keys that change the computation, and the values that leave it alone.
_REFUSED: Mapping[str, tuple[tuple[float | bool, ...], str]] = {
    "expert_count": ((0,), "a mixture of experts"),
    "nextn_predict_layers": ((0,), "layers for multi-token prediction"),
    "attn_logit_softcapping": ((0,), "soft-capping of attention scores"),
    "final_logit_softcapping": ((0,), "soft-capping of logits"),
    "logit_scale": ((0, 1), "a scale on logits"),
    "residual_scale": ((0, 1), "a scale on residuals"),
    "embedding_scale": ((0, 1), "a scale on embeddings"),
    "attention.max_alibi_bias": ((0,), "ALiBi positions"),
    "attention.clamp_kqv": ((0,), "clamped projections"),
    "attention.causal": ((True,), "attention that is not causal"),
    "rope.scaling.alpha": ((0, 1), "rope scaling by alpha"),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and traits of one model.

    `interleaved_qk`: rows of Q and K (weights and biases) lie as pairs (0, 1), (2, 3) … in the file and have
    to be put back into halves (see `half_row_order`). `rope_layers[i]` says whether layer i rotates Q and K.
    `context_length` is the longest context for which the result is exact; `notes` say why it was cut.
    """

    architecture: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab_size: int
    context_length: int
    rms_eps: float
    rope: Rope
    interleaved_qk: bool
    qk_norm: bool
    rope_layers: tuple[bool, ...]
    tied_head: bool
    qkv_bias: bool
    notes: tuple[str, ...] = ()


def read_config(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], rope_factors: NDArray[np.float32] | None = None
) -> ModelConfig:
    """Reads and checks the configuration. `rope_factors` are the values of `rope_freqs.weight` if there are any.

    Raises ModelFileError for an unknown architecture, a refused feature, or a missing or senseless key.
    """
    architecture = metadata.text("general.architecture")
    if not architecture:
        raise corrupt("general.architecture is missing")
    family = FAMILIES.get(architecture)
    if family is None:
        raise unsupported(f"the architecture {architecture} is not supported ({', '.join(FAMILIES)} are)")
    keys = ArchitectureMetadata(metadata, architecture)
    _refuse_features(keys)
    layers, hidden, heads = (
        _layers(keys, tensors),
        keys.size("embedding_length"),
        keys.size("attention.head_count"),
    )
    head_dim = _head_dim(keys, hidden, heads)
    context, notes = _exact_context(keys)
    return ModelConfig(
        architecture=architecture,
        name=metadata.text("general.name") or architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(keys, heads),
        head_dim=head_dim,
        feed_forward=keys.size("feed_forward_length"),
        vocab_size=_vocab_size(tensors),
        context_length=context,
        rms_eps=keys.epsilon("attention.layer_norm_rms_epsilon"),
        rope=read_rope(keys, head_dim, keys.size("context_length"), rope_factors),
        interleaved_qk=family.interleaved_qk,
        qk_norm=family.qk_norm,
        rope_layers=tuple(not _is_rope_free(layer, family) for layer in range(layers)),
        tied_head="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        notes=notes,
    )


def half_row_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """For each row [heads · head_dim] of a Q or K matrix in halves, the row of the interleaved file to take.

    Inside a head, file row 2i + h goes to row h · head_dim/2 + i.
    """
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.transpose(0, 2, 1).reshape(-1)


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that a file of this configuration must have, with its row-major shape, and no others."""
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, config.hidden),
        "output_norm.weight": (config.hidden,),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab_size, config.hidden)
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, forward = config.hidden, config.feed_forward
    rows = {"q": config.heads * config.head_dim, "k": config.kv_heads * config.head_dim}
    rows["v"] = rows["k"]
    shapes: dict[str, Shape] = {f"attn_{which}.weight": (count, hidden) for which, count in rows.items()}
    if config.qkv_bias:
        shapes |= {f"attn_{which}.bias": (count,) for which, count in rows.items()}
    if config.qk_norm:
        shapes |= {f"attn_{which}_norm.weight": (config.head_dim,) for which in "qk"}
    return shapes | {
        "attn_norm.weight": (hidden,),
        "attn_output.weight": (hidden, rows["q"]),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (forward, hidden),
        "ffn_up.weight": (forward, hidden),
        "ffn_down.weight": (hidden, forward),
    }


def _refuse_features(keys: ArchitectureMetadata) -> None:
    for suffix, (harmless, what) in _REFUSED.items():
        value = keys.raw(suffix)
        if value is not None and not any(value == allowed for allowed in harmless):
            raise unsupported(f"{what} is not supported ({keys.key(suffix)} is {value})")


def _layers(keys: ArchitectureMetadata, tensors: Mapping[str, TensorInfo]) -> int:
    layers = keys.size("block_count")
    if layers > len(tensors):  # nothing is built per layer before this
        raise corrupt(f"{keys.key('block_count')} is {layers}, but the file has {len(tensors)} tensors")
    return layers


def _head_dim(keys: ArchitectureMetadata, hidden: int, heads: int) -> int:
    if "attention.key_length" not in keys and hidden % heads:
        raise corrupt(f"{hidden} dimensions can't be split between {heads} heads")
    head_dim = keys.size("attention.key_length", hidden // heads or 1)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise unsupported("keys and values of different lengths are not supported")
    if keys.size("rope.dimension_count", head_dim) != head_dim:
        raise unsupported("rotary embedding of a part of each head is not supported")
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise corrupt(f"a head has {head_dim} dimensions (an even number up to {MAX_HEAD_DIM} is possible)")
    scale = keys.number("attention.scale", 0.0)
    if scale and not np.isclose(scale, head_dim**-0.5, rtol=1e-4):
        raise unsupported(f"an attention scale of {scale:g} is not supported (1/√{head_dim} is)")
    return head_dim


def _kv_heads(keys: ArchitectureMetadata, heads: int) -> int:
    try:
        kv_heads = keys.size("attention.head_count_kv", heads)
    except ModelFileError:
        raise unsupported(
            "a number of key-value heads that differs between layers is not supported"
        ) from None
    if heads % kv_heads:
        raise corrupt(f"{heads} heads can't share {kv_heads} key-value heads")
    return kv_heads


def _vocab_size(tensors: Mapping[str, TensorInfo]) -> int:
    """The rows of the embedding. Metadata may name the size before padding, or leave it out."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise corrupt("the tensor token_embd.weight is missing")
    return embedding.shape[0]


def _exact_context(keys: ArchitectureMetadata) -> tuple[int, tuple[str, ...]]:
    """The longest context that plain full attention computes exactly, and what limits it."""
    context, notes = keys.size("context_length"), []
    window = keys.raw("attention.sliding_window")
    if isinstance(window, int) and 0 < window < context:
        notes.append(f"the context is limited to the sliding window of {window:,} tokens (of {context:,})")
        context = window
    # Ministral 3 scales queries by 1 + β·ln(1 + ⌊position / length⌋), which is 1 up to that length.
    if keys.number("attention.temperature_scale", 0.0):
        length = keys.size(
            "attention.temperature_length", original_context(keys, keys.size("context_length"))
        )
        if length < context:
            notes.append(f"the context is limited to {length:,} tokens, where attention temperature sets in")
            context = length
    return context, tuple(notes)


def _is_rope_free(layer: int, family: Family) -> bool:
    return bool(family.rope_free_every) and (layer + 1) % family.rope_free_every == 0
