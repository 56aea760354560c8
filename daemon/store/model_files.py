"""What this machine keeps of a model besides its file: prefixes on disk, and the graph that was built of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

from ..errors import StoreError
from ..paths import Paths
from .registry import Removed


def capsule_folder(capsules: Path, model: str, device: str) -> Path:
    """Where the prefixes of a model on a device lie: only one worker at a time has them."""
    return capsules / (_quoted(model) + quote(device, safe=""))


def remove_traces(paths: Paths, removed: Removed) -> int:
    """Removes all of that for a model that has left the store; returns the bytes that it took.

    A graph stays while its file does, under another name. A worker that still runs goes on without a disk. Raises
    StoreError when a folder can't be removed.
    """
    folders = list(_beginning(paths.capsules, _quoted(removed.name)))
    if removed.freed is not None and removed.digest:
        # The graph cache names its entries so, see `engine/graph_cache.py`.
        folders += _beginning(paths.compile_cache, f"{removed.digest[:16]}-")
    return sum(_remove(folder) for folder in folders)


def _quoted(model: str) -> str:
    # Names have no spaces: no other name begins like this.
    return quote(f"{model} ", safe="")


def _beginning(folder: Path, prefix: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.startswith(prefix)]


def _remove(folder: Path) -> int:
    leaving = folder.with_name(f".removed-{folder.name}")
    try:
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if leaving.exists():
            shutil.rmtree(leaving)
        # Renamed first, so that nobody can write into a folder that is being emptied.
        folder.rename(leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        raise StoreError(f"{folder} can't be removed: {error.strerror}") from error
    return size
