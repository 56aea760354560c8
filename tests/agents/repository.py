"""The repository that an agent works in: three small files and one commit, thrown away afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

MODULE = "greeter.py"
NOTE = "note.txt"
DONE = "The note was read."
NOTE_TEXT = f"<reply>{DONE}</reply>"
"""Tells the scripted model what to say once it has read the file."""

_FILES = {
    MODULE: 'def greet(name: str) -> str:\n    return f"Hello, {name}"\n',
    NOTE: f"{NOTE_TEXT}\n",
    "README.md": "# Greeter\n\nSays hello to people by their name.\n",
}
_AUTHOR = {"user.name": "nobody", "user.email": "nobody@example.invalid"}


def make_repository(folder: Path) -> Path:
    """Makes it in a folder that is not there yet, and returns the folder."""
    folder.mkdir()
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    for key, value in _AUTHOR.items():
        _git(folder, "config", key, value)
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message=start")
    return folder


def commits(folder: Path) -> int:
    """How many the current branch has."""
    return int(_git(folder, "rev-list", "--count", "HEAD"))


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout
