"""A sentence-transformers folder becomes one GGUF file, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentserve.engine.encoders.config import Pooling
from agentserve.engine.encoders.convert import convert, main
from agentserve.engine.encoders.source import open_encoder
from agentserve.engine.gguf.weights import dense
from agentserve.engine.model_errors import ModelFileError
from tiny_encoders import CONTEXT, FOLDER, NAME, VOCABULARY, TinyEncoder, make_tiny_encoder, safetensors


def converted(tiny: TinyEncoder, folder: Path, **files: bytes) -> Path:
    """`files` replace files of the model; a double underscore stands for a slash, a single one for a dot."""
    named = {name.replace("__", "/").replace("_json", ".json"): data for name, data in files.items()}
    target = folder / "out.gguf"
    convert(lambda name: {**tiny.files, **named}[name], NAME, target)
    return target


def test_the_file_says_what_the_folder_said(tmp_path: Path) -> None:
    tiny = make_tiny_encoder(pooling="cls_token", normalize=False)
    source = open_encoder(tiny.write(tmp_path / "tiny.gguf"))
    config = source.config
    assert (config.name, config.layers, config.hidden, config.heads, config.feed_forward) == (
        NAME,
        2,
        32,
        4,
        64,
    )
    assert (config.context_length, config.positions, config.vocab_size) == (CONTEXT, 64, len(VOCABULARY))
    assert (config.pooling, config.normalize) == (Pooling.CLS, False)
    words = dense(source.tensor("token_embd.weight"))
    np.testing.assert_array_equal(words, tiny.state["embeddings.word_embeddings.weight"])
    keys = dense(source.tensor("blk.1.attn_k.bias"))
    np.testing.assert_array_equal(keys, tiny.state["encoder.layer.1.attention.self.key.bias"])


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    first = converted(make_tiny_encoder(), tmp_path).read_bytes()
    assert converted(make_tiny_encoder(), tmp_path).read_bytes() == first


def test_what_is_no_weight_is_left_out(tmp_path: Path) -> None:
    tiny = make_tiny_encoder()
    further = {"embeddings.position_ids": np.arange(4), "pooler.dense.bias": np.zeros(32, np.float32)}
    files = {**tiny.files, "model.safetensors": safetensors({**tiny.state, **further})}
    convert(files.__getitem__, NAME, tmp_path / "out.gguf")
    assert open_encoder(tmp_path / "out.gguf").parameters == sum(value.size for value in tiny.state.values())


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


MODULES = [{"type": f"x.{kind}", "path": ""} for kind in ("Transformer", "Pooling", "Dense")]


@pytest.mark.parametrize(
    ("changes", "files", "message"),
    [
        ({"model_type": "roberta"}, {}, "model_type roberta is not supported"),
        ({"hidden_act": "relu"}, {}, "hidden_act relu is not supported"),
        ({"position_embedding_type": "relative_key"}, {}, "position_embedding_type relative_key"),
        ({}, {"modules_json": as_json(MODULES)}, "the module Dense"),
        ({}, {"modules_json": as_json(MODULES[:1])}, "without pooling"),
        (
            {},
            {"1_Pooling__config_json": as_json({"pooling_mode_max_tokens": True})},
            "pooling_mode_max_tokens",
        ),
        ({}, {"tokenizer_json": as_json({"normalizer": {"lowercase": False}})}, "lower-cased"),
    ],
)
def test_a_model_that_computes_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        converted(make_tiny_encoder(changes=changes), tmp_path, **files)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("encoder.layer.0.adapter.weight", np.zeros(3, np.float32), "has no place"),
        ("encoder.layer.0.output.dense.weight", np.zeros(3, np.int64), "has the type I64"),
    ],
)
def test_a_tensor_that_would_be_lost_is_refused(tmp_path: Path, name: str, values: Any, message: str) -> None:
    tiny = make_tiny_encoder()
    files = {**tiny.files, "model.safetensors": safetensors({**tiny.state, name: values})}
    with pytest.raises(ModelFileError, match=message):
        convert(files.__getitem__, NAME, tmp_path / "out.gguf")


def test_the_program_prints_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "tiny.whl"
    wheel.write_bytes(make_tiny_encoder().wheel)
    assert main([str(wheel), FOLDER, NAME, str(tmp_path / "out.gguf")]) == 0
    assert json.loads(capsys.readouterr().out) == {}
    assert main([str(wheel), "elsewhere/", NAME, str(tmp_path / "out.gguf")]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"code": "corrupt_model", "message": "the model has no file config.json"}
