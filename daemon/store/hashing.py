"""Reading and writing large files in pieces while computing their SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20

OnBytes = Callable[[int], None]
"""Called with the number of bytes done so far."""


class Readable(Protocol):
    """Any open binary file, a member of a zip file among them."""

    def read(self, size: int, /) -> bytes: ...


def hash_file(path: Path, on_bytes: OnBytes) -> str:
    """The file's SHA-256 in lower-case hexadecimal. Raises OSError."""
    with path.open("rb") as source:
        return _pump(source, lambda _chunk: None, on_bytes)


def write_hashed(source: Readable, target: Path, on_bytes: OnBytes) -> str:
    """Writes all of `source` to `target`, replacing it, down to the disk; returns the SHA-256. Raises OSError."""
    with target.open("wb") as sink:
        digest = _pump(source, sink.write, on_bytes)
        sink.flush()
        os.fsync(sink.fileno())
    return digest


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pump(source: Readable, sink: Callable[[bytes], object], on_bytes: OnBytes) -> str:
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        sink(chunk)
        done += len(chunk)
        on_bytes(done)
    return digest.hexdigest()
