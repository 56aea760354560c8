"""The model store through its public methods, on real folders and with real second processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agentserve.daemon.errors import StoreError
from agentserve.daemon.store.registry import Arrived, ModelStore, StoredModel, UnknownModel, size_text
from hypothesis import given
from hypothesis import strategies as st
from package_index import sha256

INFO = {"architecture": "llama", "context_length": 2048}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def put(
    store: ModelStore, name: str, content: bytes = b"weights", aliases: tuple[str, ...] = ()
) -> StoredModel:
    digest = sha256(content)
    with store.arrival(digest, lambda: None):
        staged = store.staging(digest)
        staged.write_bytes(content)
        return store.add(staged, Arrived(name, digest, "a test", INFO, aliases))


def blobs(store: ModelStore) -> list[str]:
    return sorted(path.name for path in (store.root / "blobs").iterdir())


def test_looking_at_a_missing_store_finds_nothing_and_creates_nothing(store: ModelStore) -> None:
    assert store.list() == []
    with pytest.raises(UnknownModel):
        store.resolve("smollm2")
    assert not store.root.exists()


def test_a_model_comes_back_with_everything_that_was_said_about_it(store: ModelStore) -> None:
    added = put(store, "mini:1b", b"12345", aliases=("mini",))
    again = ModelStore(store.root).resolve("mini:1b")
    assert again == added
    assert (again.name, again.aliases, again.size, again.info) == ("mini:1b", ("mini",), 5, INFO)
    assert again.digest == f"sha256:{sha256(b'12345')}"
    assert again.path.read_bytes() == b"12345"
    assert again.created > 1_600_000_000


@pytest.mark.parametrize("spelling", ["mini", "mini:latest", "mini:1b", "MINI:1B"])
def test_a_model_is_found_by_full_name_alias_and_latest_in_any_case(store: ModelStore, spelling: str) -> None:
    put(store, "mini:1b", aliases=("mini",))
    assert store.resolve(spelling).name == "mini:1b"


def test_a_name_without_tag_is_latest_and_found_without_it(store: ModelStore) -> None:
    model = put(store, "mine")
    assert (model.name, model.aliases) == ("mine:latest", ("mine",))
    assert store.resolve("mine") == store.resolve("mine:latest") == model


def test_a_models_own_name_outranks_the_alias_of_another(store: ModelStore) -> None:
    put(store, "mini:1b", b"a", aliases=("mini", "mini:latest"))
    put(store, "mini", b"b")
    assert store.resolve("mini").path.read_bytes() == b"b"
    aliases = [alias for model in store.list() for alias in model.aliases]
    assert aliases == ["mini"], "each spelling leads to one model"


def test_an_unknown_name_is_answered_with_near_matches_and_the_way_out(store: ModelStore) -> None:
    put(store, "mistral:7b")
    with pytest.raises(UnknownModel, match=r"did you mean mistral:7b.*agentserve pull"):
        store.resolve("mistrel:7b")


def test_a_catalogue_model_that_is_not_here_is_answered_with_its_pull_command(store: ModelStore) -> None:
    with pytest.raises(UnknownModel, match=r"get it with `agentserve pull smollm2`"):
        store.resolve("smollm2")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "a:",
        ":b",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a:b:c",
        "a\n",
        "a\x00b",
        ".hidden",
        "a b",
        "é",
        "x" * 129,
    ],
)
def test_an_unsafe_name_is_refused_and_writes_nothing(store: ModelStore, name: str) -> None:
    with pytest.raises(StoreError, match="is no model name"):
        put(store, name)
    assert store.list() == []


@given(st.text(max_size=40))
def test_no_text_at_all_is_taken_for_a_path_outside_the_store(name: str) -> None:
    store = ModelStore(Path("/nonexistent/store"))
    with pytest.raises(StoreError):
        store.resolve(name)


def test_a_name_that_another_model_has_is_not_taken_over(store: ModelStore) -> None:
    put(store, "mini", b"first")
    with pytest.raises(StoreError, match=r"another model already .*rm mini:latest"):
        put(store, "mini", b"second")
    assert store.resolve("mini").path.read_bytes() == b"first"
    assert len(blobs(store)) == 1


def test_adding_the_same_model_twice_changes_nothing(store: ModelStore) -> None:
    first = put(store, "mini")
    second = put(store, "mini")
    assert (first.digest, first.name) == (second.digest, second.name)
    assert len(store.list()) == len(blobs(store)) == 1


def test_removing_a_name_frees_the_file_only_with_the_last_name(store: ModelStore) -> None:
    put(store, "one", b"shared")
    put(store, "two", b"shared")
    assert store.remove("one").freed is None
    assert store.resolve("two").path.read_bytes() == b"shared"
    removed = store.remove("two")
    assert (removed.name, removed.freed) == ("two:latest", 6)
    assert blobs(store) == []
    assert store.list() == []


def test_an_alias_removes_the_model_it_stands_for(store: ModelStore) -> None:
    put(store, "mini:1b", aliases=("mini",))
    assert store.remove("mini").name == "mini:1b"


def test_an_unknown_name_is_not_removed(store: ModelStore) -> None:
    put(store, "mini")
    with pytest.raises(UnknownModel, match="did you mean mini"):
        store.remove("minu")
    assert len(store.list()) == 1


def test_a_damaged_manifest_is_named_and_can_be_removed(store: ModelStore) -> None:
    put(store, "mini")
    (store.root / "manifests/mini/latest.json").write_text('{"digest": 3}')
    with pytest.raises(StoreError, match=r"manifest of mini:latest is damaged.*agentserve rm mini:latest"):
        store.list()
    store.remove("mini")
    assert store.list() == []


def test_a_model_whose_file_is_gone_says_so(store: ModelStore) -> None:
    put(store, "mini").path.unlink()
    with pytest.raises(StoreError, match=r"file of mini:latest is gone.*agentserve rm mini:latest"):
        store.resolve("mini")
    store.remove("mini")


def test_half_written_files_are_never_listed(store: ModelStore) -> None:
    put(store, "mini")
    (store.root / "manifests/mini/other.new").write_text("{")
    store.staging("ab" * 32).write_bytes(b"half")
    assert [model.name for model in store.list()] == ["mini:latest"]


def test_a_store_that_is_a_file_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("not a folder")
    with pytest.raises(StoreError, match=r"can't be written.*AGENTSERVE_MODELS"):
        put(ModelStore(tmp_path / "models"), "mini")


ADD_AND_REMOVE = """
import sys
from pathlib import Path
from agentserve.daemon.store.registry import Arrived, ModelStore
store, me = ModelStore(Path(sys.argv[1])), sys.argv[2]
for turn in range(15):
    with store.arrival(sys.argv[3], lambda: None):
        staged = store.staging(sys.argv[3])
        if not store.holds(sys.argv[3]):
            staged.write_bytes(b"shared")
        store.add(staged, Arrived(me, sys.argv[3], "test", {}))
    assert store.resolve(me).path.read_bytes() == b"shared"
    store.remove(me)
"""


def test_processes_that_add_and_remove_one_file_never_lose_it_for_each_other(store: ModelStore) -> None:
    digest = sha256(b"shared")
    command = [sys.executable, "-P", "-c", ADD_AND_REMOVE, str(store.root)]
    workers = [
        subprocess.Popen([*command, name, digest], stderr=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    errors = [worker.communicate(timeout=60)[1] for worker in workers]
    assert errors == ["", ""]
    assert store.list() == []
    assert blobs(store) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (4e12, "4.0 TB")],
)
def test_sizes_are_shown_in_decimal_units(size: float, text: str) -> None:
    assert size_text(size) == text


def test_a_lock_that_can_not_be_made_is_said_with_what_to_do(tmp_path: Path) -> None:
    digest = "0" * 64
    (tmp_path / "locks" / digest).mkdir(parents=True)
    with (
        pytest.raises(StoreError, match=r"can't be written .*: make it a writable folder, or move it with"),
        ModelStore(tmp_path).arrival(digest),
    ):
        pytest.fail("nobody may bring in anything")
