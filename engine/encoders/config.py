"""What a BERT-like encoder looks like, read from GGUF metadata.

The keys and tensor names are llama.cpp's (`conversion/bert.py`, `src/models/bert.cpp`), the computation that of
transformers' `BertModel` (Devlin et al. 2018) with the pooling of sentence-transformers. Two facts have no key there:

    normalize_embeddings   whether vectors get the length 1; true where the file does not say, as llama.cpp does it
    the activation         GELU by the error function, which is what every published model of this family has
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..gguf.header import TensorInfo
from ..gguf.metadata import ArchitectureMetadata, Metadata
from ..gguf.model_config import Shape
from ..model_errors import corrupt, unsupported

ARCHITECTURE = "bert"
NORMALIZE = f"{ARCHITECTURE}.normalize_embeddings"


class Pooling(Enum):
    """How the vectors of a text's tokens become one; the values are those of `bert.pooling_type`."""

    MEAN = 1
    CLS = 2
    LAST = 3


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes and traits of one encoder. `context_length` counts the tokens of a text with those that frame it."""

    name: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocab_size: int
    positions: int
    token_types: int
    context_length: int
    norm_eps: float
    pooling: Pooling
    normalize: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def is_encoder(metadata: Metadata) -> bool:
    """True if the file holds an encoder of this family."""
    return metadata.text("general.architecture") == ARCHITECTURE


def read_encoder_config(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> EncoderConfig:
    """Reads and checks the configuration. Raises ModelFileError for a refused feature and a senseless key."""
    keys = ArchitectureMetadata(metadata, ARCHITECTURE)
    if metadata.flag(keys.key("attention.causal"), False):
        raise unsupported("an encoder with causal attention is not supported")
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    if hidden % heads:
        raise corrupt(f"{hidden} dimensions can't be split between {heads} heads")
    layers = keys.size("block_count")
    if layers > len(tensors):  # nothing is built per layer before this
        raise corrupt(f"{keys.key('block_count')} is {layers}, but the file has {len(tensors)} tensors")
    positions = _rows("position_embd.weight", tensors)
    return EncoderConfig(
        name=metadata.text("general.name") or ARCHITECTURE,
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=keys.size("feed_forward_length"),
        vocab_size=_rows("token_embd.weight", tensors),
        positions=positions,
        token_types=_rows("token_types.weight", tensors),
        context_length=_context_length(keys, positions),
        norm_eps=keys.epsilon("attention.layer_norm_epsilon"),
        pooling=_pooling(keys, metadata),
        normalize=metadata.flag(NORMALIZE, True),
    )


def encoder_shapes(config: EncoderConfig) -> dict[str, Shape]:
    """Every tensor that a file of this configuration must have, with its row-major shape, and no others."""
    hidden, forward = config.hidden, config.feed_forward
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "position_embd.weight": (config.positions, hidden),
        "token_types.weight": (config.token_types, hidden),
        **_with_bias("token_embd_norm", (hidden,)),
    }
    for layer in range(config.layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes |= _with_bias(f"blk.{layer}.{name}", (hidden, hidden))
        shapes |= _with_bias(f"blk.{layer}.ffn_up", (forward, hidden))
        shapes |= _with_bias(f"blk.{layer}.ffn_down", (hidden, forward))
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes |= _with_bias(f"blk.{layer}.{name}", (hidden,))
    return shapes


def _with_bias(name: str, shape: Shape) -> dict[str, Shape]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _rows(name: str, tensors: Mapping[str, TensorInfo]) -> int:
    if name not in tensors:
        raise corrupt(f"the tensor {name} is missing")
    return tensors[name].shape[0]


def _context_length(keys: ArchitectureMetadata, positions: int) -> int:
    context = keys.size("context_length", positions)
    if not 2 < context <= positions:
        raise corrupt(f"{keys.key('context_length')} is {context}, but there are {positions} positions")
    return context


def _pooling(keys: ArchitectureMetadata, metadata: Metadata) -> Pooling:
    number = metadata.integer(keys.key("pooling_type"), Pooling.MEAN.value)
    try:
        return Pooling(number)
    except ValueError:
        known = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in Pooling)
        raise unsupported(
            f"the pooling {number} ({keys.key('pooling_type')}) is not supported ({known} are)"
        ) from None
