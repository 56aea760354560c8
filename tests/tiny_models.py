"""Tiny GGUF files of every supported family, written as llama.cpp's converter writes them.

    model = write_tiny_gguf(folder / "tiny.gguf", "qwen3", seed=1)
    model.state          # float32 weights by transformers' names, exactly what the file's bytes mean
    model.hf_config      # arguments for the configuration class named by model.hf_class

The same arguments always give the same bytes. Quantised types that gguf can't make (K-quants) are filled with
random valid blocks, so a given `state` is not possible for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tiny_vocabulary import VOCAB_SIZE, write_byte_level, write_sentence_piece

Floats = NDArray[np.float32]
Q = GGMLQuantizationType

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyFamily:
    """What the converter does for a family, and what transformers calls it."""

    hf_class: str
    interleaved: bool
    tied: bool
    pre: str
    qkv_bias: bool = False
    qk_norm: bool = False
    hf_extra: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[str, TinyFamily] = {
    "llama": TinyFamily("LlamaConfig", interleaved=True, tied=True, pre="smollm"),
    "mistral": TinyFamily(
        "MistralConfig", interleaved=True, tied=False, pre="tekken", hf_extra={"sliding_window": None}
    ),
    "qwen2": TinyFamily("Qwen2Config", interleaved=False, tied=True, pre="qwen2", qkv_bias=True),
    "qwen3": TinyFamily("Qwen3Config", interleaved=False, tied=True, pre="qwen2", qk_norm=True),
    "smollm3": TinyFamily("SmolLM3Config", interleaved=True, tied=True, pre="llama-bpe"),
}
# A mistral-like model is a llama model with its own head; that is what the converter writes.
_ARCHITECTURES = {"mistral": "llama"}


@dataclass(frozen=True)
class TinySizes:
    """Sizes of a tiny model; K-quants need `hidden`, `feed_forward` and heads · head_dim in multiples of 256."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 96
    context: int = 512
    vocab: int = VOCAB_SIZE
    rms_eps: float = 1e-5
    rope_base: float = 10_000.0


K_SIZES = TinySizes(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, feed_forward=256)


@dataclass(frozen=True)
class TinyModel:
    path: Path
    family: str
    sizes: TinySizes
    state: dict[str, Floats]

    @property
    def hf_class(self) -> str:
        return FAMILIES[self.family].hf_class

    @property
    def hf_config(self) -> dict[str, Any]:
        sizes, family = self.sizes, FAMILIES[self.family]
        return {
            "vocab_size": sizes.vocab,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.feed_forward,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "max_position_embeddings": sizes.context,
            "rms_norm_eps": sizes.rms_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": sizes.rope_base},
            "tie_word_embeddings": "lm_head.weight" not in self.state,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            **family.hf_extra,
        }


def write_tiny_gguf(
    path: Path,
    family: str = "llama",
    *,
    tensor_type: Q = Q.F32,
    seed: int = 0,
    sizes: TinySizes | None = None,
    state: Mapping[str, Floats] | None = None,
    tied: bool | None = None,
    tokenizer: Literal["gpt2", "llama"] = "gpt2",
    pre: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    chat_template: str | None = CHATML,
    rope_factors: Floats | None = None,
    architecture: str | None = None,
    vocabulary: Callable[[GGUFWriter], None] | None = None,
) -> TinyModel:
    """Writes one file and says what its weights are.

    `state` float32 arrays by transformers' names replace random ones; matrices are stored as `tensor_type`, norms
    and biases as F32. `metadata` adds or replaces keys (int, float, bool, str). `architecture` is what the file says
    it is, where that differs from the family.
    """
    sizes = sizes or (K_SIZES if tensor_type.name.endswith("_K") else TinySizes())
    traits = FAMILIES[family]
    tied = traits.tied if tied is None else tied
    rng = np.random.default_rng(seed)
    given = dict(state) if state is not None else random_state(family, sizes, rng, tied=tied)
    writer = GGUFWriter(path, architecture or _ARCHITECTURES.get(family, family))
    _write_keys(writer, family, sizes, metadata or {}, tensor_type)
    if vocabulary is not None:
        vocabulary(writer)
    elif tokenizer == "gpt2":
        write_byte_level(writer, sizes.vocab, pre or traits.pre)
    else:
        write_sentence_piece(writer, sizes.vocab)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    stored = {
        name: _write_tensor(writer, name, value, tensor_type, traits, sizes, rng)
        for name, value in given.items()
    }
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyModel(path, family, sizes, stored)


def random_state(
    family: str, sizes: TinySizes, rng: np.random.Generator, *, tied: bool | None = None
) -> dict[str, Floats]:
    """Random float32 weights by transformers' names, scaled so that activations stay near 1."""
    traits = FAMILIES[family]
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim

    def matrix(rows: int, columns: int) -> Floats:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def near(value: float, size: int) -> Floats:
        return (value + 0.1 * rng.standard_normal(size)).astype(np.float32)

    state = {"model.embed_tokens.weight": matrix(sizes.vocab, sizes.hidden) * np.float32(4)}
    for layer in range(sizes.layers):
        shapes = {
            "self_attn.q_proj": (q_rows, sizes.hidden),
            "self_attn.k_proj": (kv_rows, sizes.hidden),
            "self_attn.v_proj": (kv_rows, sizes.hidden),
            "self_attn.o_proj": (sizes.hidden, q_rows),
            "mlp.gate_proj": (sizes.feed_forward, sizes.hidden),
            "mlp.up_proj": (sizes.feed_forward, sizes.hidden),
            "mlp.down_proj": (sizes.hidden, sizes.feed_forward),
        }
        prefix = f"model.layers.{layer}."
        state |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        state |= {
            f"{prefix}{name}.weight": near(1, sizes.hidden)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        if traits.qkv_bias:
            state |= {
                f"{prefix}self_attn.{w}_proj.bias": near(0, q_rows if w == "q" else kv_rows) for w in "qkv"
            }
        if traits.qk_norm:
            state |= {f"{prefix}self_attn.{w}_norm.weight": near(1, sizes.head_dim) for w in "qk"}
    state["model.norm.weight"] = near(1, sizes.hidden)
    if not (traits.tied if tied is None else tied):
        state["lm_head.weight"] = matrix(sizes.vocab, sizes.hidden)
    return state


def random_blocks(kind: Q, blocks: int, rng: np.random.Generator, spread: float = 0.1) -> NDArray[np.uint8]:
    """Random valid blocks [blocks, bytes] of a K-quant type whose weights have about this spread."""
    data = rng.integers(0, 256, (blocks, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    if kind is Q.Q6_K:  # … int8 scales [16], d
        data[:, 192:208] = rng.integers(-64, 64, (blocks, 16), dtype=np.int8).view(np.uint8)
        data[:, 208:210] = _halves(rng.uniform(0.5, 1, (blocks, 1)) * spread / 600)
    else:  # d, dmin, …: Q4_K and Q5_K; minima at half the range of q, so that zero lies inside most groups
        half = 7.5 if kind is Q.Q4_K else 15.5
        d = rng.uniform(0.5, 1, (blocks, 1)) * spread / (32 * half / 2)
        data[:, 0:2], data[:, 2:4] = _halves(d), _halves(d * half)
        data[:, 8:12] = data[:, 4:8]
        data[:, 12:16] = (data[:, 12:16] & 15) * 17
    return data


def gguf_name(hf_name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`."""
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        **{f"self_attn.{w}_proj": f"attn_{w}" for w in "qkv"},
        **{f"self_attn.{w}_norm": f"attn_{w}_norm" for w in "qk"},
        **{f"mlp.{w}_proj": f"ffn_{w}" for w in ("gate", "up", "down")},
    }
    stem, _, kind = hf_name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{parts[part]}.{kind}"


def interleave(rows: Floats, heads: int) -> Floats:
    """Halves → pairs, as the converter permutes rows of Q and K for the llama families."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def uninterleave(rows: Floats, heads: int) -> Floats:
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_keys(
    writer: GGUFWriter, family: str, sizes: TinySizes, extra: Mapping[str, Any], tensor_type: Q
) -> None:
    arch = writer.arch
    keys: dict[str, Any] = {
        "general.name": f"tiny {family}",
        "general.license": "apache-2.0",
        "general.file_type": {Q.F32: 0, Q.F16: 1, Q.Q4_0: 2, Q.Q4_1: 3, Q.Q8_0: 7}.get(tensor_type, 1024),
        f"{arch}.block_count": sizes.layers,
        f"{arch}.context_length": sizes.context,
        f"{arch}.embedding_length": sizes.hidden,
        f"{arch}.feed_forward_length": sizes.feed_forward,
        f"{arch}.attention.head_count": sizes.heads,
        f"{arch}.attention.head_count_kv": sizes.kv_heads,
        f"{arch}.attention.key_length": sizes.head_dim,
        f"{arch}.attention.value_length": sizes.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": sizes.rms_eps,
        f"{arch}.rope.freq_base": sizes.rope_base,
        f"{arch}.rope.dimension_count": sizes.head_dim,
        f"{arch}.vocab_size": sizes.vocab,
        **extra,
    }
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)


def _write_tensor(
    writer: GGUFWriter,
    name: str,
    value: Floats,
    tensor_type: Q,
    traits: TinyFamily,
    sizes: TinySizes,
    rng: np.random.Generator,
) -> Floats:
    """Stores one tensor as the converter would and returns what its bytes mean, in transformers' row order."""
    heads = (
        {"q": sizes.heads, "k": sizes.kv_heads}.get(name.rpartition("_proj")[0][-1:], 0)
        if traits.interleaved
        else 0
    )
    kind = tensor_type if value.ndim == 2 else Q.F32
    rows = interleave(value, heads) if heads else value
    data = _encode(rows, kind, rng)
    writer.add_tensor(gguf_name(name), data, raw_dtype=None if kind in (Q.F32, Q.F16) else kind)
    stored = np.asarray(dequantize(data, kind), np.float32).reshape(value.shape)
    return uninterleave(stored, heads) if heads else stored


def _encode(rows: Floats, kind: Q, rng: np.random.Generator) -> NDArray[Any]:
    if kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        blocks = random_blocks(kind, rows.size // 256, rng, spread=float(rows.std()) * 2)
        return blocks.reshape(rows.shape[0], -1)
    if kind is Q.F16:
        return rows.astype(np.float16)
    encoded: NDArray[Any] = quantize(rows, kind)
    return encoded


def _halves(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return values.astype("<f2").view(np.uint8)
