"""Encoder files that can't be served are refused by name, and chat models are not taken for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentserve.engine.encoders.source import holds_encoder, open_encoder
from agentserve.engine.inspect import describe_encoder
from agentserve.engine.model_errors import ModelFileError
from tiny_encoders import CONTEXT, DIMENSIONS, NAME, VOCABULARY, make_tiny_encoder, rewritten
from tiny_models import write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder().write(tmp_path_factory.mktemp("encoder") / "tiny.gguf")


def test_an_encoder_is_told_from_a_chat_model(tiny: Path, tmp_path: Path) -> None:
    assert holds_encoder(tiny)
    assert not holds_encoder(write_tiny_gguf(tmp_path / "chat.gguf", "qwen2").path)


def test_what_the_model_store_is_told(tiny: Path) -> None:
    facts = describe_encoder(open_encoder(tiny))
    assert {
        key: facts[key] for key in ("name", "architecture", "context_length", "vocab_size", "quantization")
    } == {
        "name": NAME,
        "architecture": "bert",
        "context_length": CONTEXT,
        "vocab_size": len(VOCABULARY),
        "quantization": "F16",
    }
    assert (facts["dimensions"], facts["pooling"], facts["normalized"]) == (DIMENSIONS, "mean", True)
    assert facts["capabilities"] == ["embedding"]


def test_a_file_without_our_key_is_normalised(tiny: Path, tmp_path: Path) -> None:
    """As other converters write it; llama.cpp normalises the vectors of all such models."""
    plain = rewritten(tiny, tmp_path / "plain.gguf", {"bert.normalize_embeddings": None})
    assert open_encoder(plain).config.normalize


@pytest.mark.parametrize(
    ("keys", "without", "code", "message"),
    [
        ({"bert.attention.causal": True}, "", "unsupported_model", "causal attention"),
        ({"bert.pooling_type": 4}, "", "unsupported_model", "pooling 4"),
        ({"bert.attention.head_count": 5}, "", "corrupt_model", "between 5 heads"),
        ({"bert.block_count": 3}, "", "corrupt_model", r"blk\.2\.attn_q\.weight is missing"),
        ({"bert.block_count": 1}, "", "unsupported_model", r"blk\.1\.\S+ has no place"),
        ({"bert.block_count": 2_000_000}, "", "corrupt_model", "2000000, but the file has"),
        ({"bert.context_length": 65}, "", "corrupt_model", "there are 64 positions"),
        ({"bert.feed_forward_length": 49}, "", "corrupt_model", "has the shape 64×32"),
        ({"bert.attention.layer_norm_epsilon": None}, "", "corrupt_model", "layer_norm_epsilon is missing"),
        ({}, "position_embd.weight", "corrupt_model", r"position_embd\.weight is missing"),
        ({}, "token_embd_norm.bias", "corrupt_model", r"token_embd_norm\.bias is missing"),
    ],
)
def test_a_file_that_can_not_be_served_is_refused(
    tiny: Path, tmp_path: Path, keys: dict[str, Any], without: str, code: str, message: str
) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        open_encoder(rewritten(tiny, tmp_path / "bad.gguf", keys, without))
    assert caught.value.code == code
