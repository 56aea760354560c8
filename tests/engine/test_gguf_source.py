"""Opening GGUF files: good ones of every family, and every kind of bad one by its name."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentserve.engine.gguf.model_config import half_row_order
from agentserve.engine.gguf.source import GgufModel, open_gguf
from agentserve.engine.inspect import describe
from agentserve.engine.model_errors import ModelFileError
from gguf.constants import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES, TinySizes, interleave, random_state, write_tiny_gguf

SIZES = TinySizes()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").path


def opened(folder: Path, family: str = "llama", **changes: Any) -> GgufModel:
    return open_gguf(write_tiny_gguf(folder / "tiny.gguf", family, **changes).path)


def refusal(path: Path) -> tuple[str, str]:
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    assert str(path.parent) not in caught.value.message
    return caught.value.code, caught.value.message


def refused(folder: Path, **changes: Any) -> tuple[str, str]:
    return refusal(write_tiny_gguf(folder / "tiny.gguf", **changes).path)


@pytest.mark.parametrize(
    ("family", "interleaved", "qk_norm", "bias", "tied", "rope_layers"),
    [
        ("llama", True, False, False, True, (True,) * 4),
        ("mistral", True, False, False, False, (True,) * 4),
        ("qwen2", False, False, True, True, (True,) * 4),
        ("qwen3", False, True, False, True, (True,) * 4),
        ("smollm3", True, False, False, True, (True, True, True, False)),
    ],
)
def test_each_family_is_read_with_its_traits(
    tmp_path: Path,
    family: str,
    interleaved: bool,
    qk_norm: bool,
    bias: bool,
    tied: bool,
    rope_layers: tuple[bool, ...],
) -> None:
    config = opened(tmp_path, family).config
    assert (config.interleaved_qk, config.qk_norm, config.qkv_bias, config.tied_head) == (
        interleaved,
        qk_norm,
        bias,
        tied,
    )
    assert config.rope_layers == rope_layers
    assert (config.layers, config.hidden, config.heads, config.kv_heads) == (4, 64, 4, 2)
    assert (config.head_dim, config.feed_forward, config.vocab_size) == (32, 96, SIZES.vocab)
    assert config.rms_eps == pytest.approx(1e-5)
    assert config.context_length == 512
    assert config.notes == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_and_tensors_are_those_that_were_written(tmp_path: Path, family: str) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", family)
    model = open_gguf(tiny.path)
    assert model.parameters == sum(value.size for value in tiny.state.values())
    up = model.tensor("blk.2.ffn_up.weight")
    assert up.shape == (96, 64)
    assert (
        up.data.view(np.float32).reshape(up.shape) == tiny.state["model.layers.2.mlp.up_proj.weight"]
    ).all()


def test_the_row_order_undoes_the_converters_interleaving() -> None:
    rows = np.random.default_rng(0).standard_normal((3 * 8, 5)).astype(np.float32)
    assert (interleave(rows, 3)[half_row_order(3, 8)] == rows).all()


def test_template_and_sampling_advice_come_from_the_file(tmp_path: Path) -> None:
    model = opened(
        tmp_path,
        metadata={"general.sampling.temp": 0.6, "general.sampling.top_k": 20},
        chat_template="{{ 1 }}",
    )
    assert model.chat_template == "{{ 1 }}"
    assert model.sampling_defaults.temperature == pytest.approx(0.6)
    assert model.sampling_defaults.top_k == 20
    assert model.sampling_defaults.top_p is None
    assert opened(tmp_path, chat_template=None).chat_template is None


def test_a_file_can_be_read_again_after_its_pages_were_released(tmp_path: Path) -> None:
    model = opened(tmp_path)
    before = model.tensor("output_norm.weight").data.copy()
    model.release_pages()
    assert (model.tensor("output_norm.weight").data == before).all()


def test_a_sliding_window_below_the_context_limits_the_context(tmp_path: Path) -> None:
    config = opened(tmp_path, metadata={"llama.attention.sliding_window": 128}).config
    assert config.context_length == 128
    assert config.notes == ("the context is limited to the sliding window of 128 tokens (of 512)",)
    assert opened(tmp_path, metadata={"llama.attention.sliding_window": 4096}).config.context_length == 512


def test_ministral_is_exact_up_to_where_its_attention_temperature_sets_in(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    keys = {
        "mistral3.attention.temperature_scale": 0.1,
        "mistral3.rope.scaling.type": "yarn",
        "mistral3.rope.scaling.factor": 4.0,
        "mistral3.rope.scaling.yarn_log_multiplier": 1.0,
        "mistral3.rope.scaling.original_context_length": 128,
    }
    config = open_gguf(write_tiny_gguf(path, "mistral", architecture="mistral3", metadata=keys).path).config
    assert config.architecture == "mistral3"
    assert config.context_length == 128
    assert config.notes == ("the context is limited to 128 tokens, where attention temperature sets in",)
    assert config.rope.attention_factor == pytest.approx(1.0)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == ("corrupt_model", "this is a folder; a GGUF file is needed")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf") == ("corrupt_model", "the model file is missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the model file is empty"),
        (b"PK\x03\x04" + bytes(100), "this is not a GGUF file"),
        (b"GG", "the file is truncated inside its header, or the header is damaged"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
            "the file is truncated inside its header, or the header is damaged",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0),
            "the file is truncated inside its header, or the header is damaged",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture is missing"),
    ],
)
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert refusal(path) == ("corrupt_model", message)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (b"\x01\0\0\0", "GGUF version 1 is not supported (2 and 3 are)"),
        (b"\0\0\0\x03", "a big-endian GGUF file; only little-endian ones are supported"),
    ],
)
def test_another_version_or_byte_order_is_refused_by_name(
    tmp_path: Path, version: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + version + bytes(16))
    assert refusal(path) == ("unsupported_model", message)


def test_a_truncated_file_is_refused_with_both_sizes(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "short.gguf"
    size = tiny.stat().st_size
    path.write_bytes(tiny.read_bytes()[:-40])
    code, message = refusal(path)
    assert code == "corrupt_model"
    assert message.startswith("the file is truncated: tensor output_norm.weight ends at byte")
    assert message.endswith(f"the file has {size - 40:,}")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path, tiny: Path) -> None:
    content, path = tiny.read_bytes(), tmp_path / "short.gguf"
    for length in [*range(1, 400), *range(400, len(content) - 32, 997)]:
        path.write_bytes(content[:length])
        assert refusal(path)[0] == "corrupt_model"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "damaged.gguf"


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damage_in_the_header_is_refused_in_one_line_or_harmless(
    tiny: Path, scratch: Path, data: st.DataObject
) -> None:
    content = bytearray(tiny.read_bytes())
    header = content.index(b"output_norm.weight") + 60
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, header))] = data.draw(st.integers(0, 255))
    scratch.write_bytes(content)
    try:
        describe(open_gguf(scratch))
    except ModelFileError as error:
        assert error.message.isprintable()  # noqa: PT017 (no error at all is as good)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    code, message = refused(tmp_path, architecture="mamba2")
    assert code == "unsupported_model"
    assert message == "the architecture mamba2 is not supported (llama, mistral3, qwen2, qwen3, smollm3 are)"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_count", 8, "a mixture of experts is not supported (llama.expert_count is 8)"),
        (
            "attn_logit_softcapping",
            50.0,
            "soft-capping of attention scores is not supported (llama.attn_logit_softcapping is 50.0)",
        ),
        (
            "attention.causal",
            False,
            "attention that is not causal is not supported (llama.attention.causal is False)",
        ),
        ("attention.value_length", 16, "keys and values of different lengths are not supported"),
        ("rope.dimension_count", 16, "rotary embedding of a part of each head is not supported"),
        ("attention.scale", 0.5, "an attention scale of 0.5 is not supported (1/√32 is)"),
        (
            "rope.scaling.type",
            "longrope",
            "rope scaling of the type longrope is not supported (none, linear, yarn, llama3 are)",
        ),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    assert refused(tmp_path, metadata={f"llama.{key}": value}) == ("unsupported_model", message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 2**31 - 1, "llama.block_count is 2147483647, but the file has 38 tensors"),
        ("attention.head_count_kv", 3, "4 heads can't share 3 key-value heads"),
        (
            "attention.key_length",
            2**30,
            "a head has 1073741824 dimensions (an even number up to 4096 is possible)",
        ),
        ("context_length", "long", "llama.context_length is not one positive whole number"),
        (
            "attention.layer_norm_rms_epsilon",
            0.0,
            "llama.attention.layer_norm_rms_epsilon is missing or senseless",
        ),
        ("rope.freq_base", 0.0, "llama.rope.freq_base is 0.0"),
    ],
)
def test_a_senseless_size_is_refused_before_anything_is_built(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    keys = {f"llama.{key}": value}
    if key == "attention.key_length":
        keys |= {"llama.attention.value_length": value, "llama.rope.dimension_count": value}
    assert refused(tmp_path, metadata=keys) == ("corrupt_model", message)


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, metadata={"split.count": 3}) == (
        "unsupported_model",
        "this is one of 3 parts of a model; merge them into one file first",
    )


def test_an_unsupported_tensor_type_is_refused_with_the_tensors_name(tmp_path: Path, tiny: Path) -> None:
    name = b"blk.1.ffn_up.weight"
    content = bytearray(tiny.read_bytes())
    at = content.index(name) + len(name) + 4 + 16
    for number, message in [
        (Q.IQ4_NL, "tensor blk.1.ffn_up.weight has the type IQ4_NL, which is not supported"),
        (999, "tensor blk.1.ffn_up.weight has the unknown type number 999"),
    ]:
        content[at : at + 4] = struct.pack("<I", number)
        (tmp_path / "bad.gguf").write_bytes(content)
        assert refusal(tmp_path / "bad.gguf") == ("unsupported_model", message)


def test_missing_misshapen_and_extra_tensors_are_refused_by_name(tmp_path: Path) -> None:
    state = random_state("llama", SIZES, np.random.default_rng(0))
    gone = {name: value for name, value in state.items() if name != "model.layers.1.mlp.up_proj.weight"}
    assert refused(tmp_path, state=gone) == ("corrupt_model", "the tensor blk.1.ffn_up.weight is missing")
    assert refused(tmp_path, state=state, sizes=replace(SIZES, feed_forward=128)) == (
        "corrupt_model",
        "tensor blk.0.ffn_gate.weight has the shape 96×64, 128×64 is needed",
    )
    extra = state | {"model.layers.0.self_attn.o_proj.bias": np.zeros(64, np.float32)}
    assert refused(tmp_path, state=extra) == (
        "unsupported_model",
        "the tensor blk.0.attn_output.bias has no place in a llama model here",
    )
