from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.loading import LoadedModel, load
from agentserve.engine.model_errors import LoadError, ModelFileError
from agentserve.engine.protocol import LoadModel, LoadStage
from agentserve.engine.runners import loading as openvino_loading
from agentserve.engine.runners.runner import SequenceSlice, StepPlan
from gguf.constants import GGMLQuantizationType as Q
from tiny_models import write_tiny_gguf


@pytest.fixture
def spec(tmp_path: Path) -> LoadModel:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen2", tensor_type=Q.Q4_0, seed=5)
    return LoadModel(
        "tiny", str(tiny.path), "0123456789abcdef" * 4, compile_cache_dir=str(tmp_path / "cache")
    )


def loaded(spec: LoadModel) -> LoadedModel:
    return load(spec, lambda stage: None)


def logits(model: LoadedModel) -> np.ndarray:
    return model.runner.forward(StepPlan((SequenceSlice((5, 6, 7, 8), 0, (0,), (3,)),))).copy()


def test_the_second_load_takes_the_graph_from_disk_and_computes_the_same(spec: LoadModel) -> None:
    first, second = loaded(spec), loaded(spec)
    assert (first.cache_hit, second.cache_hit) == (False, True)
    assert first.info.fingerprint == second.info.fingerprint
    np.testing.assert_array_equal(logits(first), logits(second))


def test_loading_tells_its_stages_in_order(spec: LoadModel) -> None:
    stages: list[LoadStage] = []
    load(spec, stages.append)
    assert stages == list(LoadStage)


def test_a_truncated_graph_is_built_again(spec: LoadModel, tmp_path: Path) -> None:
    expected = logits(loaded(spec))
    (weights,) = (tmp_path / "cache").glob("*/model.bin")
    with open(weights, "r+b") as file:
        file.truncate(1000)
    again = loaded(spec)
    assert not again.cache_hit
    np.testing.assert_array_equal(logits(again), expected)


def test_a_garbled_graph_is_built_again(spec: LoadModel, tmp_path: Path) -> None:
    loaded(spec)
    (graph,) = (tmp_path / "cache").glob("*/model.xml")
    graph.write_bytes(b"<" * graph.stat().st_size)
    assert not loaded(spec).cache_hit


def test_a_graph_of_another_builder_is_replaced(
    spec: LoadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(spec)
    monkeypatch.setattr(openvino_loading, "BUILDER_VERSION", 999)
    assert not loaded(spec).cache_hit
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_rounded_minima_are_another_graph_and_another_fingerprint(spec: LoadModel, tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "minima.gguf", "llama", tensor_type=Q.Q4_1, seed=5)
    kept, balanced = (
        loaded(replace(spec, model_path=str(tiny.path), minima=minima)) for minima in ("kept", "balanced")
    )
    assert kept.info.weight_bytes > balanced.info.weight_bytes
    rounded = loaded(replace(spec, model_path=str(tiny.path), minima="rounded"))
    assert not rounded.cache_hit
    assert rounded.info.fingerprint != kept.info.fingerprint
    assert balanced.info.weight_bytes > rounded.info.weight_bytes
    assert not np.array_equal(logits(kept), logits(rounded))


def test_exact_mode_has_a_fingerprint_of_its_own(spec: LoadModel) -> None:
    """KV of single-row steps has other bits, so it must not be restored where exactness is promised."""
    plain, exact = (loaded(replace(spec, exact=value)).info.fingerprint for value in (False, True))
    assert plain != exact


def test_a_cache_folder_that_can_not_be_written_costs_a_warning_and_not_the_load(
    spec: LoadModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        model = loaded(replace(spec, compile_cache_dir=str(tmp_path / "file" / "cache")))
    assert not model.cache_hit
    assert "graph cache is not used" in caplog.text


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(
    spec: LoadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_loading, "available_bytes", lambda: 1000)
    with pytest.raises(LoadError, match=r"takes [\d,]+ bytes of memory and 1,000 are available") as caught:
        loaded(spec)
    assert caught.value.code == "out_of_memory"


def test_a_device_that_is_not_supported_is_refused_by_name(spec: LoadModel) -> None:
    with pytest.raises(LoadError, match="the device NPU is not supported yet") as caught:
        loaded(replace(spec, device="NPU"))
    assert caught.value.code == "unsupported_device"


def test_a_missing_file_is_refused_without_its_path(spec: LoadModel) -> None:
    with pytest.raises(ModelFileError) as caught:
        loaded(replace(spec, model_path="/nowhere/at/all.gguf"))
    assert "nowhere" not in str(caught.value)


def test_the_context_can_be_limited(spec: LoadModel) -> None:
    assert loaded(replace(spec, max_context=128)).info.context_length == 128
