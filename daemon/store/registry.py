"""The model store: which models are here, under which names, and where their files lie.

    blobs/sha256-<hex>            model files by content; several names may share one
    manifests/<base>/<tag>.json   one per name: digest, aliases and what the engine said about the file
    partial/<hex>                 files on their way in; never listed, so nothing half done is visible
    locks/                        flock files: `store` for names, one per digest for what is on its way in

A manifest is the last thing written and the first thing removed. Reading takes no lock. Nothing here opens a
model: its description was taken once, at import.
"""

from __future__ import annotations

import difflib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..errors import StoreError
from .catalogue import CATALOGUE, find_entry
from .file_lock import file_lock, no_notice
from .hashing import sync_folder
from .model_names import DEFAULT_TAG, ModelName, parse_name

Models = list["StoredModel"]


class UnknownModel(StoreError):
    """No stored model has this name."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of the store. `digest` is `sha256:<hex>`, `size` bytes, `created` unix seconds of its arrival.

    `info` is what the engine said about the file: architecture, parameters, context_length, quantization,
    has_chat_template and more; see `engine/inspect.py`.
    """

    name: str
    aliases: tuple[str, ...]
    path: Path
    digest: str
    size: int
    created: int
    info: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file ready to be published: `digest` is its SHA-256 in hex, `source` where it came from.

    `info` is the engine's description of it, see `model_info.inspect_file`.
    """

    name: str
    digest: str
    source: str
    info: Mapping[str, object]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """What `remove` did; `freed` is in bytes, and None while another name keeps the file. `digest` is the file's
    SHA-256 in hex, None when the manifest was damaged."""

    name: str
    freed: int | None
    digest: str | None = None


class _Manifest(msgspec.Struct, frozen=True):
    """The file format of a manifest, version 1."""

    digest: str
    size: int
    created: int
    source: str
    aliases: tuple[str, ...] = ()
    info: dict[str, object] = {}
    version: int = 1


class ModelStore:
    """A folder of models. Any number of processes may use it at once; no method keeps state in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # ---- reading

    def list(self) -> Models:
        """All models, by name. Raises StoreError when a manifest is damaged."""
        names = self._names()
        return [self._load(name, frozenset(names)) for name in names]

    def resolve(self, name: str) -> StoredModel:
        """The model called `name`: a full name, a base name (tag `latest`) or an alias.

        Raises UnknownModel, which names near matches, and StoreError when its file is gone.
        """
        model = self._find(name)
        if not model.path.is_file():
            raise StoreError(
                f"The file of {model.name} is gone from the model store; "
                f"run `agentserve rm {model.name}`, then pull it again"
            )
        return model

    # ---- changing

    def staging(self, digest: str) -> Path:
        """Where the file with this digest (hex) is put together. Use it inside `arrival(digest)` only."""
        path = self.root / "partial" / digest
        with writing(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def arrival(self, digest: str, on_wait: Callable[[], None] = no_notice) -> Iterator[None]:
        """A lock held while the file with this digest is brought in; `on_wait` tells that another holds it.

        Raises StoreError when the store can't be written.
        """
        with ExitStack() as held:
            with writing(self.root):
                held.enter_context(file_lock(self._lock_folder / digest, on_wait))
            yield

    def blob(self, digest: str) -> Path:
        """Where the file with this digest (hex) lies once it is published."""
        return self.root / "blobs" / f"sha256-{digest}"

    def holds(self, digest: str, size: int | None = None) -> bool:
        """True if the file with this digest (hex) lies in the store, and has `size` bytes where that is known."""
        blob = self.blob(digest)
        return blob.is_file() and size in (None, blob.stat().st_size)

    def add(self, staged: Path, arrived: Arrived) -> StoredModel:
        """Publishes the file in `staging(digest)` under a name; the caller has checked its content.

        Does nothing for a model that is already there; a file that has lost its end is replaced. Raises StoreError
        for a bad name and for one that another model has.
        """
        name, digest = parse_name(arrived.name), arrived.digest
        with writing(self.root), self._names_locked():
            self._refuse_other(name, digest)
            blob = self.blob(digest)
            if not self.holds(digest, staged.stat().st_size if staged.exists() else None):
                blob.parent.mkdir(parents=True, exist_ok=True)
                staged.replace(blob)
                sync_folder(blob.parent)
            self._write_manifest(name, _manifest(arrived, blob.stat().st_size))
        return self._find(str(name))

    def remove(self, name: str) -> Removed:
        """Removes a name, and its file unless another name has it too. Raises UnknownModel."""
        wanted = parse_name(name)
        if not self._manifest_path(wanted).exists():
            wanted = parse_name(self._find(name).name)
        digest = self._digest_or_none(wanted)
        # Whoever brings this file in has seen that it is here: it may not go until they are done.
        with writing(self.root), self.arrival(digest or "damaged"), self._names_locked():
            if self._digest_or_none(wanted) != digest:
                raise StoreError(f"{wanted} was changed by another process meanwhile; try again")
            path = self._manifest_path(wanted)
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
            return Removed(str(wanted), self._drop_blob(digest) if digest else 0, digest)

    # ---- files

    @property
    def _lock_folder(self) -> Path:
        return self.root / "locks"

    def _names_locked(self) -> AbstractContextManager[None]:
        return file_lock(self._lock_folder / "store")

    def _manifest_path(self, name: ModelName) -> Path:
        return self.root / "manifests" / name.base / f"{name.tag}.json"

    def _names(self) -> tuple[ModelName, ...]:
        found = (self.root / "manifests").glob("*/*.json")
        return tuple(sorted(ModelName(path.parent.name, path.name.removesuffix(".json")) for path in found))

    def _read_manifest(self, name: ModelName) -> _Manifest:
        try:
            return msgspec.json.decode(self._manifest_path(name).read_bytes(), type=_Manifest)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"The manifest of {name} is damaged ({error}); run `agentserve rm {name}`, then pull it again"
            ) from None

    def _write_manifest(self, name: ModelName, manifest: _Manifest) -> None:
        path = self._manifest_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{name.tag}.new")
        with unfinished.open("wb") as sink:
            sink.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
            sink.flush()
            os.fsync(sink.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)

    def _load(self, name: ModelName, names: frozenset[ModelName]) -> StoredModel:
        manifest = self._read_manifest(name)
        spellings = (name.base, *manifest.aliases) if name.tag == DEFAULT_TAG else manifest.aliases
        free = tuple(a for a in spellings if parse_name(a) == name or parse_name(a) not in names)
        path = self.blob(manifest.digest.removeprefix("sha256:"))
        return StoredModel(
            str(name), free, path, manifest.digest, manifest.size, manifest.created, manifest.info
        )

    def _find(self, name: str) -> StoredModel:
        wanted = parse_name(name)
        names = frozenset(self._names())
        if wanted in names:
            return self._load(wanted, names)
        models = [self._load(one, names) for one in sorted(names)]
        for model in models:
            if any(parse_name(alias) == wanted for alias in model.aliases):
                return model
        raise UnknownModel(_unknown(name, models))

    def _refuse_other(self, name: ModelName, digest: str) -> None:
        there = self._digest_or_none(name)
        if there is not None and there != digest:
            raise StoreError(
                f"{name} is another model already (sha256:{there[:12]}…); "
                f"choose another name, or run `agentserve rm {name}` first"
            )

    def _digest_or_none(self, name: ModelName) -> str | None:
        """The hex digest in a manifest; None for one that is missing or damaged, which may be replaced."""
        try:
            return self._read_manifest(name).digest.removeprefix("sha256:")
        except (FileNotFoundError, StoreError):
            return None

    def _drop_blob(self, digest: str) -> int | None:
        if any(self._digest_or_none(name) == digest for name in self._names()):
            return None
        blob = self.blob(digest)
        freed = blob.stat().st_size if blob.exists() else 0
        blob.unlink(missing_ok=True)
        return freed


def capabilities(model: StoredModel) -> tuple[str, ...]:
    """What a model can do, `completion` or `embedding`; models that were stored before this was noted generate text."""
    noted = model.info.get("capabilities")
    return tuple(map(str, noted)) if isinstance(noted, list) else ("completion",)


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turns what the system says about the disk or folder of the store into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space, or move the store with AGENTSERVE_MODELS"
            raise StoreError(f"The disk of the model store {root} is full: {advice}") from error
        advice = "make it a writable folder, or move it with AGENTSERVE_MODELS"
        why = error.strerror or str(error)
        raise StoreError(f"The model store {root} can't be written ({why}): {advice}") from error


def size_text(size: float) -> str:
    """Bytes for people, in decimal units: `98.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _manifest(arrived: Arrived, size: int) -> _Manifest:
    digest = f"sha256:{arrived.digest}"
    return _Manifest(digest, size, int(time.time()), arrived.source, arrived.aliases, dict(arrived.info))


def _unknown(name: str, models: Models) -> str:
    if entry := find_entry(name):
        return f"{entry.name} is not in the model store; get it with `agentserve pull {name}`"
    known = {spelling for model in models for spelling in (model.name, *model.aliases)}
    known |= {spelling for entry in CATALOGUE for spelling in entry.names}
    near = difflib.get_close_matches(name.lower(), sorted(known), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"There is no model {name!r}{hint} See `agentserve list`, or get one with `agentserve pull`"
