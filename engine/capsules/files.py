"""Capsules as files in the safetensors format (https://huggingface.co/docs/safetensors), one file a capsule.

    8 bytes        length of the header, little-endian
    header         JSON, padded with spaces: tensors `blocks` U8 [n, block_bytes] and `states` U8 [m, state_bytes],
                   and in `__metadata__` the capsule (as JSON text) and a CRC-32 of that text
    data           the blocks, then the state rows

A file is written under a temporary name, synced, renamed, and its folder synced: under its own name it is whole.
The header has room for all blocks that were planned; a capsule that ends early leaves more spaces.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..runners.runner import KvGeometry
from .capsule import Capsule

SUFFIX = ".safetensors"
TEMPORARY = ".part"
_LENGTH_BYTES = 8
_MAX_HEADER = 64 << 20


class CapsuleError(Exception):
    """A capsule file is not what it should be; the text says how and names no folder."""


class Opened(NamedTuple):
    """A header that was read and found sound, where the data begins in the file, and the file's size."""

    capsule: Capsule
    data_start: int
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether the file is as long as its header says."""
        return self.size == self.data_start + self.capsule.data_bytes


def read_header(path: Path) -> Opened:
    """Reads what stands before the data. Raises CapsuleError for a damaged header, OSError from the system."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(_MAX_HEADER, size):
            raise CapsuleError("the header has no length that fits the file")
        capsule = _decode(file.read(length))
    return Opened(capsule, _LENGTH_BYTES + length, size)


def planned_size(capsule: Capsule) -> int:
    """The size of the file of a capsule that is written to its end."""
    return _LENGTH_BYTES + len(_encode(capsule)) + capsule.data_bytes


def _encode(capsule: Capsule) -> bytes:
    geometry = capsule.geometry
    end = capsule.blocks * geometry.block_bytes
    tensors: dict[str, Any] = {
        "blocks": {"dtype": "U8", "shape": [capsule.blocks, geometry.block_bytes], "data_offsets": [0, end]}
    }
    if capsule.states:
        shape = [len(capsule.states), geometry.state_bytes]
        tensors["states"] = {"dtype": "U8", "shape": shape, "data_offsets": [end, capsule.data_bytes]}
    text = json.dumps(_fields(capsule))
    tensors["__metadata__"] = {"capsule": text, "crc32": f"{zlib.crc32(text.encode()):08x}"}
    return json.dumps(tensors).encode()


def _fields(capsule: Capsule) -> dict[str, Any]:
    geometry = capsule.geometry
    return {
        "fingerprint": capsule.fingerprint,
        "namespace": capsule.namespace,
        "name": capsule.name,
        "geometry": [geometry.block_tokens, geometry.block_bytes, geometry.state_bytes],
        "parent": capsule.parent.hex(),
        "first": capsule.first,
        "tokens": base64.b64encode(np.array(capsule.tokens, "<i4").tobytes()).decode(),
        "states": list(capsule.states),
        # All of one width, so that the header's length is known before the data is.
        "checksums": "".join(f"{checksum:08x}" for checksum in capsule.checksums),
        "created": round(capsule.created, 3),
        "expires": capsule.expires,
    }


def _decode(header: bytes) -> Capsule:
    try:
        metadata = json.loads(header)["__metadata__"]
        text = metadata["capsule"]
        if f"{zlib.crc32(text.encode()):08x}" != metadata["crc32"]:
            raise CapsuleError("the header's checksum is wrong")
        capsule = _from_fields(json.loads(text))
        if len(capsule.checksums) != capsule.blocks + len(capsule.states):
            raise CapsuleError("the header has too few or too many checksums")
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise CapsuleError("the header is damaged") from error
    return capsule


def _from_fields(fields: dict[str, Any]) -> Capsule:
    sums = fields["checksums"]
    return Capsule(
        fingerprint=fields["fingerprint"],
        namespace=fields["namespace"],
        geometry=KvGeometry(*fields["geometry"]),
        parent=bytes.fromhex(fields["parent"]),
        first=fields["first"],
        tokens=tuple(np.frombuffer(base64.b64decode(fields["tokens"]), "<i4").tolist()),
        states=tuple(fields["states"]),
        checksums=tuple(int(sums[i : i + 8], 16) for i in range(0, len(sums), 8)),
        created=fields["created"],
        name=fields["name"],
        expires=fields["expires"],
    )


@dataclass(slots=True)
class CapsuleFile:
    """A capsule on its way to the disk; blocks are added in order, then state rows with the last of them.

    `planned` has the most tokens and states that will come, and checksums of any value for them. No method but
    `finish` and `abandon` may follow an OSError.
    """

    path: Path
    planned: Capsule
    _file: BinaryIO | None = None
    _data_start: int = 0
    _checksums: list[int] | None = None

    def begin(self) -> None:
        """Opens the temporary file; makes the folder where it was removed meanwhile. Raises OSError."""
        self._data_start = _LENGTH_BYTES + len(_encode(self.planned))
        self._checksums = []
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._file.seek(self._data_start)

    def add(self, data: bytes) -> None:
        """Writes the next block or state row. Raises OSError."""
        assert self._file is not None
        assert self._checksums is not None
        self._file.write(data)
        self._checksums.append(zlib.crc32(data))

    def finish(self, capsule: Capsule) -> Opened:
        """Writes the header for what was added, which `capsule` describes, and gives the file its name.

        Raises OSError.
        """
        assert self._file is not None
        assert self._checksums is not None
        assert len(self._checksums) == capsule.blocks + len(capsule.states), "not all of it was added"
        done = replace(capsule, checksums=tuple(self._checksums))
        length = self._data_start - _LENGTH_BYTES
        self._file.seek(0)
        self._file.write(length.to_bytes(_LENGTH_BYTES, "little") + _encode(done).ljust(length))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)
        sync_folder(self.path.parent)
        return Opened(done, self._data_start, self._data_start + done.data_bytes)

    def abandon(self) -> None:
        """Leaves nothing behind, whatever went wrong before."""
        if self._file is not None:
            # Closing writes what is buffered, which a full disk refuses once more.
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    @property
    def _temporary(self) -> Path:
        return self.path.with_name(self.path.name + TEMPORARY)


def sync_folder(folder: Path) -> None:
    """Makes names that were given or taken in a folder last. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
