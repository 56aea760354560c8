"""Built graphs on disk: weights repacked once, mapped into memory at every later load.

An entry is a folder `<model digest>-<builder key>` with OpenVINO's `model.xml` and `model.bin` and a `complete.json`
with their sizes. It is written under a temporary name and renamed, so an entry is whole or absent. What is not
cached is the plugin's own compilation: OpenVINO 2026.4.1 can't import a compiled graph with paged attention
(docs/engine-notes.md), so that step is repeated, on mapped weights.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import openvino as ov

_MARK = "complete.json"


class GraphCache:
    """Graphs below `folder`, which is made when the first one is stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, core: ov.Core, model_digest: str, key: str) -> ov.Model | None:
        """The graph with its constants mapped from the file; None when absent. A damaged entry is removed."""
        entry = self._entry(model_digest, key)
        if not entry.is_dir():
            return None
        if not _is_whole(entry):
            shutil.rmtree(entry)
            return None
        try:
            return core.read_model(entry / "model.xml")
        except RuntimeError:
            shutil.rmtree(entry)
            return None

    def store(self, model: ov.Model, model_digest: str, key: str) -> None:
        """Writes an entry and removes those that other builders made of the same file. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        entry = self._entry(model_digest, key)
        temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self._folder))
        try:
            _write(model, temporary)
            for stale in self._folder.glob(f"{model_digest[:16]}-*"):
                shutil.rmtree(stale)
            temporary.rename(entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def weights_file(self, model_digest: str, key: str) -> Path:
        return self._entry(model_digest, key) / "model.bin"

    def _entry(self, model_digest: str, key: str) -> Path:
        return self._folder / f"{model_digest[:16]}-{key[:16]}"


def _write(model: ov.Model, folder: Path) -> None:
    try:
        ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
    except RuntimeError as error:
        # The serialiser reports a full disk as a RuntimeError without an errno.
        raise OSError(f"the graph can't be written: {str(error).splitlines()[0]}") from error
    sizes = {name: (folder / name).stat().st_size for name in ("model.xml", "model.bin")}
    for name in sizes:
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())
    (folder / _MARK).write_text(json.dumps(sizes))


def _is_whole(entry: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((entry / _MARK).read_text())
        return all((entry / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
