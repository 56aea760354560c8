"""The package list is complete, and a built wheel works in a clean environment, outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from package_index import without_machine_settings

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "daemon", "engine", "tui")


def run(*command: object, cwd: Path, home: Path | None = None) -> str:
    """Standard output of a command that must succeed."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if home is not None:
        environment = {**without_machine_settings(os.environ), "AGENTSERVE_HOME": str(home)}
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_package_on_disk_is_in_the_package_list() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    on_disk = {"agentserve", "agentserve.completions"}  # the second holds data only
    for folder in FOLDERS:
        for marker in (ROOT / folder).rglob("__init__.py"):
            on_disk.add("agentserve." + ".".join(marker.parent.relative_to(ROOT).parts))
    assert listed == on_disk


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git would commit, since a build writes into its source folder."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", target, source, cwd=target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a clean virtual environment that holds the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    pip = (folder / "bin/python", "-m", "pip", "install", "--quiet")
    run(*pip, "--upgrade", "pip>=25", cwd=folder)
    run(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {f"agentserve/{path.relative_to(ROOT)}" for f in FOLDERS for path in (ROOT / f).rglob("*.py")}
    completions = {f"agentserve/completions/{path.name}" for path in (ROOT / "completions").iterdir()}
    assert held - {name for name in held if name.endswith(".tcss")} == (
        modules | completions | {"agentserve/__init__.py", "agentserve/py.typed"}
    )


def test_the_installed_wheel_serves_from_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    agentserve, home = installed / "agentserve", tmp_path / "home"
    assert run(agentserve, "--version", cwd=tmp_path, home=home).startswith("agentserve 0.")
    up = run(agentserve, "up", "--mock", "--port", "0", cwd=tmp_path, home=home)
    try:
        assert up.startswith("export OPENAI_BASE_URL=http://127.0.0.1:")
        assert "reference on mock" in run(agentserve, "status", cwd=tmp_path, home=home)
        assert run(agentserve, "run", "hello", "--max-tokens", "8", cwd=tmp_path, home=home).strip()
    finally:
        run(agentserve, "down", cwd=tmp_path, home=home)


def test_the_installed_completions_can_be_read(installed: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.resources import files\n"
        "print((files('agentserve.completions') / 'agentserve.bash').read_text())"
    )
    shown = run(installed / "python", "-P", "-c", program, cwd=tmp_path, home=tmp_path)
    assert shown.rstrip("\n") == (ROOT / "completions/agentserve.bash").read_text().rstrip("\n")
