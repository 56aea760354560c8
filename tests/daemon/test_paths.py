"""Where things are kept, from the environment alone."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from agentserve.daemon.paths import resolve_paths


def test_a_home_holds_everything(tmp_path: Path) -> None:
    folders = astuple(resolve_paths({"AGENTSERVE_HOME": str(tmp_path)}))
    assert len(set(folders)) == 6
    assert all(folder.is_relative_to(tmp_path) for folder in folders)
    assert list(tmp_path.iterdir()) == [], "looking creates nothing"


def test_the_model_store_can_be_moved_alone(tmp_path: Path) -> None:
    paths = resolve_paths({"AGENTSERVE_HOME": str(tmp_path), "AGENTSERVE_MODELS": "/models"})
    assert paths.models == Path("/models")
    assert paths.data_dir == tmp_path / "data"


def test_a_relative_home_is_taken_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_paths({"AGENTSERVE_HOME": "here"}).config_file == tmp_path / "here/config/config.toml"


def test_the_sessions_runtime_folder_is_used_where_there_is_one(tmp_path: Path) -> None:
    assert resolve_paths({"XDG_RUNTIME_DIR": str(tmp_path)}).runtime_dir == tmp_path / "agentserve"


def test_without_a_runtime_folder_the_state_folder_serves(tmp_path: Path) -> None:
    runtime = resolve_paths({"XDG_RUNTIME_DIR": str(tmp_path / "missing")}).runtime_dir
    assert runtime.parts[-2:] == ("agentserve", "run")
    assert not runtime.is_relative_to("/tmp"), "a folder that anybody may have made is not trusted"
