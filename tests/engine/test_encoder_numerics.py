"""Our encoder against transformers' BertModel with the same weights in float32.

Both compute in float32, and the tiny models' weights are exact in float16, which the file holds: what is left is the
order of additions, below 1e-5 of vectors of length 1. The real model loses the float16 rounding of its matrices; its
reference is read from the same file, so that the same bound holds, with room for six wide layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from agentserve.engine.encoders.graph import build_encoder
from agentserve.engine.encoders.runner import OpenVinoEncoder, encoder_properties
from agentserve.engine.encoders.source import EncoderModel, open_encoder
from agentserve.engine.encoders.tokenizer import read_word_pieces
from agentserve.engine.gguf.weights import dense
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray
from tiny_encoders import VOCABULARY, make_tiny_encoder, rewritten

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

Floats = NDArray[np.float32]
_RANDOM = np.random.default_rng(11)
TEXTS = [tuple(int(t) for t in _RANDOM.integers(5, len(VOCABULARY), length)) for length in (3, 17, 48, 1, 30)]
SENTENCES = ["A man is eating food.", "The café — déjà vu! 東京", "x" * 150, "one two three " * 40, "?"]


def our_runner(source: EncoderModel) -> OpenVinoEncoder:
    return OpenVinoEncoder(ov.Core().compile_model(build_encoder(source), "CPU", encoder_properties(2)))


def bert(config: dict[str, Any], state: dict[str, Floats]) -> Any:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**config), add_pooling_layer=False).eval()
    left = model.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()}, strict=False)
    assert not left.unexpected_keys
    assert not [name for name in left.missing_keys if not name.endswith("position_ids")]
    return model


def reference(model: Any, text: tuple[int, ...], pooling: str, normalize: bool) -> Floats:
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy()
    row: Floats = {"mean_tokens": rows.mean(0), "cls_token": rows[0], "lasttoken": rows[-1]}[pooling]
    return row / np.linalg.norm(row) if normalize else row


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "lasttoken"])
def test_a_padded_batch_gives_what_transformers_gives_for_each_text(
    tmp_path: Path, pooling: str, normalize: bool
) -> None:
    tiny = make_tiny_encoder(seed=3, pooling=pooling, normalize=normalize)
    ours = our_runner(open_encoder(tiny.write(tmp_path / "tiny.gguf"))).embed(TEXTS)
    model = bert(tiny.hf_config, tiny.state)
    theirs = np.stack([reference(model, text, pooling, normalize) for text in TEXTS])
    assert ours.shape == theirs.shape == (len(TEXTS), 32)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_quantised_file_and_another_epsilon_are_followed(tmp_path: Path) -> None:
    """The epsilon is so large that it matters where it is added."""
    tiny = make_tiny_encoder(changes={"layer_norm_eps": 0.05})
    source = open_encoder(
        rewritten(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "q8.gguf", tensor_type=Q.Q8_0)
    )
    model = bert(tiny.hf_config, _hf_state(source))
    theirs = np.stack([reference(model, text, "mean_tokens", True) for text in TEXTS])
    np.testing.assert_allclose(our_runner(source).embed(TEXTS), theirs, atol=1e-5)


@pytest.mark.model
def test_the_real_model_gives_what_transformers_gives(all_minilm: Path) -> None:
    source = open_encoder(all_minilm)
    tokenizer, config = read_word_pieces(source), source.config
    model = bert(_hf_config(source), _hf_state(source))
    texts = [tokenizer.cut(tokenizer.encode(text), config.context_length) for text in SENTENCES]
    theirs = np.stack([reference(model, text, "mean_tokens", True) for text in texts])
    np.testing.assert_allclose(our_runner(source).embed(texts), theirs, atol=1e-4)


@pytest.mark.model
def test_the_real_model_puts_like_beside_like(all_minilm: Path) -> None:
    source = open_encoder(all_minilm)
    tokenizer = read_word_pieces(source)
    texts = ["How do I sort a list in Python?", "sorting Python arrays", "The cat sleeps on the sofa"]
    asked, near, far = our_runner(source).embed([tokenizer.encode(text) for text in texts])
    assert asked @ near > 0.6
    assert asked @ far < 0.2


def _hf_config(source: EncoderModel) -> dict[str, Any]:
    config = source.config
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward,
        "max_position_embeddings": config.positions,
        "type_vocab_size": config.token_types,
        "layer_norm_eps": config.norm_eps,
    }


def _hf_state(source: EncoderModel) -> dict[str, Floats]:
    """The file's weights by transformers' names, spelled out here a second time on purpose."""
    names = {
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
    }
    for layer in range(source.config.layers):
        ours, theirs = f"blk.{layer}.", f"encoder.layer.{layer}."
        names |= {
            f"{ours}attn_{one[0]}": f"{theirs}attention.self.{one}" for one in ("query", "key", "value")
        }
        names |= {
            f"{ours}attn_output": f"{theirs}attention.output.dense",
            f"{ours}attn_output_norm": f"{theirs}attention.output.LayerNorm",
            f"{ours}ffn_up": f"{theirs}intermediate.dense",
            f"{ours}ffn_down": f"{theirs}output.dense",
            f"{ours}layer_output_norm": f"{theirs}output.LayerNorm",
        }
    state = {}
    for name in source.tensors:
        stem, _, kind = name.rpartition(".")
        state[f"{names[stem]}.{kind}"] = np.array(dense(source.tensor(name)))
    return state
