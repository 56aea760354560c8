"""Installations from the package registries, each kept for the next run once it is complete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class InstallError(Exception):
    """A package manager failed, or is not there."""


def npm_packages(folder: Path, *packages: str) -> Path:
    """Installs npm packages, each `name@version`, and returns the folder of their programs. Raises InstallError."""
    _once(folder, [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]])
    return folder / "node_modules" / ".bin"


def pip_packages(folder: Path, *packages: str) -> Path:
    """The same with pip, in a virtual environment of this Python; its packages may contradict those of ours."""
    programs = folder / "venv" / "bin"
    create = [sys.executable, "-m", "venv", str(folder / "venv")]
    _once(
        folder, [create, [str(programs / "python"), "-m", "pip", "install", "--quiet", "--quiet", *packages]]
    )
    return programs


def _once(folder: Path, commands: Sequence[Sequence[str]]) -> None:
    complete = folder / "complete"
    if complete.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        _call(command)
    complete.touch()


def _call(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=1800)
    except FileNotFoundError:
        raise InstallError(f"{command[0]} is not installed") from None
    except subprocess.SubprocessError as error:
        raise InstallError(str(error)) from None
