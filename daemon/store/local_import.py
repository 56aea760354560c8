"""Brings a GGUF file of this machine into the store, by hard link where the file system allows it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..errors import StoreError
from .hashing import hash_file, write_hashed
from .model_info import Inspector, inspect_file
from .model_names import name_from_file, parse_name
from .pull_progress import OnProgress, PullProgress, PullStage, ignore_progress
from .registry import Arrived, ModelStore, StoredModel, size_text, writing


def import_file(
    path: Path,
    store: ModelStore,
    name: str | None = None,
    on_progress: OnProgress = ignore_progress,
    inspect: Inspector = inspect_file,
) -> StoredModel:
    """Stores the file as `name`, by default made from the file's own name.

    A linked file shares its content with the original: replace a model file, don't edit it in place.
    Raises StoreError, with the engine's reason for a file that is damaged or not supported.
    """
    model_name = name_from_file(path.stem) if name is None else name
    parse_name(model_name)
    source = _regular_file(path)
    on_progress(PullProgress(PullStage.INSPECTING))
    info = inspect(source)
    size = source.stat().st_size
    digest = hash_file(source, lambda done: on_progress(PullProgress(PullStage.HASHING, done, size)))
    with store.arrival(digest, lambda: on_progress(PullProgress(PullStage.WAITING))):
        staged = store.staging(digest)
        with writing(store.root):
            if store.holds(digest, size):
                staged.unlink(missing_ok=True)
            else:
                _link_or_copy(source, staged, digest, on_progress)
        return store.add(staged, Arrived(model_name, digest, f"file:{source}", info))


def _regular_file(path: Path) -> Path:
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give the GGUF file itself")
    if not path.is_file():
        raise StoreError(f"There is no file {path}" if not path.exists() else f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} can't be read: permission denied")
    return path.resolve()


def _link_or_copy(source: Path, staged: Path, digest: str, on_progress: OnProgress) -> None:
    staged.unlink(missing_ok=True)
    try:
        staged.hardlink_to(source)
    except OSError:  # another file system, or one without links, or a file of somebody else
        _copy(source, staged, digest, on_progress)


def _copy(source: Path, staged: Path, digest: str, on_progress: OnProgress) -> None:
    size = source.stat().st_size
    free = shutil.disk_usage(staged.parent).free
    if free < size:
        raise StoreError(f"Copying {source.name} needs {size_text(size)} and {size_text(free)} are free")
    with source.open("rb") as reading:
        copied = write_hashed(
            reading, staged, lambda done: on_progress(PullProgress(PullStage.COPYING, done, size))
        )
    if copied != digest:
        staged.unlink()
        raise StoreError(f"{source.name} was changed while it was copied; try again")
