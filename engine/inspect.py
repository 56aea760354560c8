"""Says what is in a GGUF file, as one JSON object on standard output, for the model store.

    python -P -m agentserve.engine.inspect PATH

A file that can't be served ends with exit code 1 and `{"error": {"code": …, "message": …}}`. Weights are not read,
and no inference library is loaded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from gguf.constants import LlamaFileType

from .encoders.config import ARCHITECTURE
from .encoders.source import EncoderModel, holds_encoder, open_encoder
from .encoders.tokenizer import read_word_pieces
from .gguf.source import GgufFile, GgufModel, open_gguf
from .gguf.weights import scheme
from .model_errors import ModelFileError
from .prompts.templates import ChatTemplate, read_template
from .replies.formats import find_formats
from .text.tokenise import Tokenizer, read_tokenizer


def describe(model: GgufModel) -> dict[str, Any]:
    """The facts of an opened file, ready for JSON. Tokenizer and template are built too, so that a file that
    passes here can be loaded; raises ModelFileError otherwise."""
    config, tokenizer = model.config, read_tokenizer(model)
    template = read_template(model, tokenizer)
    return {
        "name": config.name,
        "architecture": config.architecture,
        "parameters": model.parameters,
        "layers": config.layers,
        "context_length": config.context_length,
        "vocab_size": config.vocab_size,
        "quantization": quantization(model),
        "tensor_types": _tensor_types(model),
        "schemes": _schemes(model),
        "has_chat_template": template is not None,
        "license": model.keys.text("general.license"),
        "notes": list(config.notes),
        "capabilities": ["completion", *_beside_text(template, tokenizer)],
    }


def _beside_text(template: ChatTemplate | None, tokenizer: Tokenizer) -> list[str]:
    """What a model was taught to write beside text, in Ollama's words."""
    formats = find_formats(template.source if template else "", tokenizer)
    skills = {"tools": formats.tool_format, "thinking": formats.reasoning_format}
    return [skill for skill, name in skills.items() if name]


def describe_encoder(model: EncoderModel) -> dict[str, Any]:
    """The same of a file that makes embeddings."""
    config = model.config
    return {
        "name": config.name,
        "architecture": ARCHITECTURE,
        "parameters": model.parameters,
        "layers": config.layers,
        "context_length": config.context_length,
        "vocab_size": read_word_pieces(model).vocab_size,
        "quantization": quantization(model),
        "tensor_types": _tensor_types(model),
        "dimensions": config.hidden,
        "pooling": config.pooling.name.lower(),
        "normalized": config.normalize,
        "license": model.keys.text("general.license"),
        "capabilities": ["embedding"],
    }


def quantization(model: GgufFile) -> str:
    """The name of the file's mixture, such as Q4_K_M; where the file does not say, its most common type."""
    number = model.keys.integer("general.file_type")
    known = {kind.value: kind.name for kind in LlamaFileType if kind is not LlamaFileType.GUESSED}
    if number in known:
        return known[number].removeprefix("MOSTLY_").removeprefix("ALL_")
    sizes = Counter[str]()
    for info in model.tensors.values():
        sizes[info.type.name] += info.size
    return sizes.most_common(1)[0][0]


def _tensor_types(model: GgufFile) -> dict[str, dict[str, int]]:
    types: dict[str, dict[str, int]] = {}
    for info in model.tensors.values():
        entry = types.setdefault(info.type.name, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += info.size
    return types


def _schemes(model: GgufModel) -> dict[str, str]:
    """How matrices of each type are held in memory; vectors stay float32."""
    kinds = {info.type for info in model.tensors.values() if len(info.shape) == 2}
    return {kind.name: scheme(kind) for kind in sorted(kinds)}


def _described(path: str) -> dict[str, Any]:
    if holds_encoder(path):
        return describe_encoder(open_encoder(path))
    return describe(open_gguf(path))


def main(arguments: list[str]) -> int:
    """The exit code: 0 with a description, 1 with an error."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -P -m agentserve.engine.inspect PATH\n")
        return 2
    try:
        answer = _described(arguments[0])
    except ModelFileError as error:
        answer = {"error": {"code": error.code, "message": error.message}}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
