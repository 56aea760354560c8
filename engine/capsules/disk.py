"""The disk tier: which blocks lie in which capsule file, what is kept within the budget, and reading them back.

Only headers are read at the start. The index is a tree like that of `block_cache`: below the address of a block
hang the blocks that may follow it. Files go least recently used first, those of another fingerprint before all
others; pins stay. Only the engine thread calls this; writing and removing is done by a background thread.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ..background import Background
from ..prefix.block_cache import Tokens, address
from ..runners.runner import KvGeometry
from .capsule import Capsule, PinName
from .files import SUFFIX, TEMPORARY, CapsuleError, CapsuleFile, planned_size, read_header
from .writing import Writing, Written

_LOG = logging.getLogger(__name__)
# Each costs a read at the start.
_MOST_FILES = 4096


@dataclass(slots=True, eq=False)
class StoredFile:
    """A whole file. `usable` is False for what another fingerprint left or what proved to be damaged."""

    path: Path
    capsule: Capsule
    data_start: int
    size: int
    usable: bool = True
    blocks: list[StoredBlock] = field(default_factory=list)


class StoredBlock(NamedTuple):
    """One block of a file: the address of its parent and its own, its tokens, and offset → state row."""

    file: StoredFile
    number: int
    parent: bytes
    key: bytes
    tokens: Tokens
    states: dict[int, int]


class _Planned(NamedTuple):
    """A file that is being written, and what it takes at most."""

    capsule: Capsule
    size: int


class CapsuleDisk:
    """The capsules below `folder`, at most `budget_bytes` in all, for one model's fingerprint and geometry.

    Makes the folder and reads all headers. Raises OSError when the folder can't be used.
    """

    def __init__(self, folder: Path, fingerprint: str, geometry: KvGeometry, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.fingerprint = fingerprint
        self.geometry = geometry
        self.background = Background("capsules")
        self._folder = folder
        # Least recently used first.
        self._files: dict[Path, StoredFile] = {}
        self._writing: dict[Path, _Planned] = {}
        self._unwanted: set[Path] = set()
        self._following: defaultdict[bytes, dict[bytes, StoredBlock]] = defaultdict(dict)
        self._results: SimpleQueue[Written] = SimpleQueue()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()

    # ---- what is there

    @property
    def used_bytes(self) -> int:
        """Bytes of all files as `collect` last knew them, those that are being written at their planned size."""
        written = sum(file.size for file in self._files.values())
        return written + sum(planned.size for planned in self._writing.values())

    def __len__(self) -> int:
        return len(self._files)

    def files(self) -> Iterator[StoredFile]:
        """All files, the least recently used first."""
        return iter(self._files.values())

    def pins(self) -> Iterator[StoredFile]:
        """The files of pins, usable or not."""
        return (file for file in self._files.values() if file.capsule.name is not None)

    def pin(self, name: PinName) -> StoredFile | None:
        """The file of a pin, usable or not."""
        self.collect()
        return next((file for file in self.pins() if file.capsule.pin == name), None)

    def find(self, parent: bytes, key: bytes, tokens: Tokens) -> StoredBlock | None:
        """The block of exactly these tokens behind the block `parent`, by its address `key`."""
        found = self._following.get(parent, {}).get(key)
        # The digest finds, the tokens decide.
        return found if found is not None and found.tokens == tokens else None

    def has(self, parent: bytes, key: bytes) -> bool:
        """Whether the block of the address `key` behind the block `parent` can be read."""
        return key in self._following.get(parent, {})

    def following(self, parent: bytes) -> Iterable[StoredBlock]:
        """All blocks that are known to follow a block, full or not."""
        self.collect()
        return self._following.get(parent, {}).values()

    def read(self, block: StoredBlock) -> bytes:
        """The block's bytes. Raises CapsuleError when they are not those that were written."""
        size = self.geometry.block_bytes
        return self._read(block.file, block.number, block.number * size, size)

    def read_state(self, block: StoredBlock, offset: int) -> bytes:
        """The recurrent state after `offset` tokens of the block. Raises CapsuleError like `read`."""
        capsule, size = block.file.capsule, self.geometry.state_bytes
        row = block.states[offset]
        begin = capsule.blocks * self.geometry.block_bytes + row * size
        return self._read(block.file, capsule.blocks + row, begin, size)

    def _read(self, file: StoredFile, checksum: int, begin: int, size: int) -> bytes:
        try:
            with file.path.open("rb", buffering=0) as raw:
                data = os.pread(raw.fileno(), size, file.data_start + begin)
        except OSError as error:
            raise CapsuleError(f"can't be read: {error.strerror}") from error
        if len(data) != size or zlib.crc32(data) != file.capsule.checksums[checksum]:
            raise CapsuleError("a checksum is wrong")
        return data

    # ---- what changes it

    def touch(self, blocks: Iterable[StoredBlock]) -> None:
        """Marks the files of a prefix as just used; give its blocks from the last to the first."""
        for file in dict.fromkeys(block.file for block in blocks):
            if file.path in self._files:
                self._files[file.path] = self._files.pop(file.path)
                self.background.submit(partial(_touch, file.path))

    def mistrust(self, file: StoredFile, why: str) -> None:
        """Takes a file that proved to be damaged out of use; a pin is kept for its tokens, others are removed."""
        _LOG.warning("the capsule %s is not used: %s", file.path.name, why)
        if file.capsule.name is None:
            self.remove(file)
        else:
            self._forget_blocks(file)
            file.usable = False

    def remove(self, file: StoredFile) -> None:
        """Forgets a file at once and deletes it soon."""
        if self._files.get(file.path) is file:
            del self._files[file.path]
            self._forget_blocks(file)
            self.background.submit(partial(_delete, file.path))

    def forget_pin(self, name: PinName) -> None:
        """Removes all files of a pin, also one that is being written."""
        self.collect()
        for file in [file for file in self.pins() if file.capsule.pin == name]:
            self.remove(file)
        self._unwanted.update(path for path, one in self._writing.items() if one.capsule.pin == name)

    def begin(self, capsule: Capsule) -> Writing | None:
        """Makes room for a capsule that is now to be written. None when it does not fit the budget."""
        self.collect()
        size = planned_size(capsule)
        if not self._make_room(size):
            return None
        path = self._new_path(capsule)
        self._writing[path] = _Planned(capsule, size)
        return Writing(CapsuleFile(path, capsule), self._results.put)

    def collect(self) -> None:
        """Takes note of what was written meanwhile, and of a folder that somebody has removed."""
        if self._files and not self._folder.is_dir():
            self._forget_lost()
        while True:
            try:
                path, opened = self._results.get_nowait()
            except Empty:
                return
            del self._writing[path]
            is_unwanted = path in self._unwanted
            self._unwanted.discard(path)
            if opened is None:
                continue
            file = StoredFile(path, *opened)
            self._add(file)
            if is_unwanted:
                self.remove(file)

    def _forget_lost(self) -> None:
        _LOG.warning("%d capsules are gone with their folder; it is made again", len(self._files))
        for file in list(self._files.values()):
            self.remove(file)

    def _new_path(self, capsule: Capsule) -> Path:
        kind = "turn"
        if capsule.pin is not None:
            salt = blake2b(capsule.namespace.encode(), digest_size=8).hexdigest()
            kind = f"pin-{salt}-{capsule.name}"
        return self._folder / f"{kind}-{time.time_ns():x}{SUFFIX}"

    def _make_room(self, size: int) -> bool:
        """Removes turns until `size` bytes more are within the budget; False when they could not be."""
        victims = sorted((f for f in self._files.values() if f.capsule.name is None), key=lambda f: f.usable)
        used = self.used_bytes + size
        if used - sum(file.size for file in victims) > self.budget_bytes:
            return False
        for victim in victims:
            if used <= self.budget_bytes and len(self._files) < _MOST_FILES:
                break
            self.remove(victim)
            used -= victim.size
        return True

    def _scan(self) -> None:
        for path in _by_age(self._folder):
            if path.name.endswith(TEMPORARY):
                _delete(path)
            elif path.name.endswith(SUFFIX):
                self._open(path)
        strange = sum(not file.usable for file in self._files.values())
        if strange:
            _LOG.warning("%d capsules of another model file, version or machine are not used", strange)
        self._make_room(0)

    def _open(self, path: Path) -> None:
        try:
            opened = read_header(path)
        except (CapsuleError, OSError) as error:
            _LOG.warning("the capsule %s is removed: %s", path.name, error)
            _delete(path)
            return
        if opened.is_whole or opened.capsule.name is not None:
            self._add(StoredFile(path, *opened, usable=opened.is_whole))
        else:
            _LOG.warning("the capsule %s is removed: it is cut short", path.name)
            _delete(path)

    def _add(self, file: StoredFile) -> None:
        capsule = file.capsule
        if capsule.pin is not None:
            # A newer one replaces it: the old one stayed until this was whole.
            for older in [other for other in self.pins() if other.capsule.pin == capsule.pin]:
                self.remove(older)
        self._files[file.path] = file
        file.usable &= (capsule.fingerprint, capsule.geometry) == (self.fingerprint, self.geometry)
        if not file.usable:
            return
        for index, (parent, key) in enumerate(_addresses(capsule)):
            begin = index * self.geometry.block_tokens
            tokens = capsule.block_tokens(index)
            states = {
                after - begin: row
                for row, after in enumerate(capsule.states)
                if begin < after <= begin + len(tokens)
            }
            file.blocks.append(StoredBlock(file, index, parent, key, tokens, states))
        self._index(file)

    def _index(self, file: StoredFile) -> None:
        """Makes the blocks of a file known. Pins hold their whole prefix and stay, so theirs come first."""
        for block in file.blocks:
            known = self._following[block.parent]
            if block.key not in known or known[block.key].file.capsule.name is None:
                known[block.key] = block

    def _forget_blocks(self, file: StoredFile) -> None:
        for block in file.blocks:
            known = self._following.get(block.parent, {})
            if known.get(block.key) is block:
                del known[block.key]
                if not known:
                    del self._following[block.parent]
        file.blocks.clear()
        for other in self.pins():
            self._index(other)


def _addresses(capsule: Capsule) -> Iterator[tuple[bytes, bytes]]:
    """The address of the parent and its own, for each block."""
    parent = capsule.parent
    for index in range(capsule.blocks):
        key = address(parent, capsule.block_tokens(index))
        yield parent, key
        parent = key


def _by_age(folder: Path) -> list[Path]:
    found = [(entry.stat().st_mtime_ns, Path(entry.path)) for entry in os.scandir(folder) if entry.is_file()]
    return [path for _, path in sorted(found)]


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _LOG.warning("the capsule %s can't be removed: %s", path.name, error.strerror)
