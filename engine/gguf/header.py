"""Reads the header of a GGUF file: keys, values and where each tensor lies.

The format is described in the ggml repository, docs/gguf.md. All numbers are little-endian:

    "GGUF" | version u32 | tensors u64 | keys u64 | keys × (name, type u32, value)
    tensors × (name, dimensions u32, dimensions × u64, type u32, offset u64) | padding | data

`gguf.GGUFReader` makes several NumPy views per token and takes seconds for a vocabulary of 49,152; walking the
bytes takes a few hundredths of a second. Nothing read here is believed before it was compared with the size of the file.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..model_errors import corrupt, unsupported
from .metadata import Metadata, MetadataValue

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major, the reverse of the file's order: (rows, columns) or (n,).

    `offset` counts bytes from the start of the file, `size` is in bytes.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    metadata: Metadata
    tensors: dict[str, TensorInfo]


def read_header(data: mmap.mmap | bytes) -> Header:
    """Reads the header of a whole GGUF file that is mapped or in memory.

    Raises ModelFileError: `corrupt_model` when bytes contradict the format or are missing,
    `unsupported_model` for another version, byte order or an unknown tensor type.
    """
    cursor = _Cursor(data)
    _check_version(cursor)
    tensor_count, key_count = cursor.u64(), cursor.u64()
    metadata = Metadata(_read_keys(cursor, key_count))
    raw = [_read_tensor(cursor) for _ in range(cursor.plausible(tensor_count, 32))]
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT) or 0
    if alignment <= 0 or alignment & (alignment - 1):
        raise corrupt("general.alignment is not a power of two")
    start = -(-cursor.at // alignment) * alignment
    return Header(metadata, _place(raw, start, alignment, len(data)))


def _check_version(cursor: _Cursor) -> None:
    if cursor.take(4) != MAGIC:
        raise corrupt("this is not a GGUF file")
    version = cursor.u32()
    if version & 0xFFFF == 0:
        raise unsupported("a big-endian GGUF file; only little-endian ones are supported")
    if version not in VERSIONS:
        raise unsupported(f"GGUF version {version} is not supported (2 and 3 are)")


def _read_keys(cursor: _Cursor, count: int) -> dict[str, MetadataValue]:
    values: dict[str, MetadataValue] = {}
    for _ in range(cursor.plausible(count, 13)):
        key = cursor.text()
        if key in values:
            raise corrupt(f"the key {key} occurs twice")
        values[key] = _read_value(cursor, cursor.u32(), key)
    return values


def _read_value(cursor: _Cursor, kind: int, key: str) -> MetadataValue:
    if kind == _STRING:
        return cursor.text()
    if kind == _ARRAY:
        item_kind, count = cursor.u32(), cursor.u64()
        return cursor.texts(count) if item_kind == _STRING else cursor.numbers(_scalar(item_kind, key), count)
    value: MetadataValue = cursor.numbers(_scalar(kind, key), 1)[0].item()
    return value


def _scalar(kind: int, key: str) -> np.dtype[np.generic]:
    if kind not in _SCALARS:
        raise corrupt(f"the value of {key} has the unknown type {kind}")
    return _SCALARS[kind]


@dataclass(frozen=True, slots=True)
class _RawTensor:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


def _read_tensor(cursor: _Cursor) -> _RawTensor:
    name = cursor.text()
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise corrupt(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(reversed([cursor.u64() for _ in range(dimensions)]))
    return _RawTensor(name, shape, cursor.u32(), cursor.u64())


def _place(raw: list[_RawTensor], start: int, alignment: int, file_size: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for tensor in raw:
        if tensor.name in tensors:
            raise corrupt(f"the tensor {tensor.name} occurs twice")
        if tensor.offset % alignment:
            raise corrupt(f"tensor {tensor.name} does not lie on a multiple of {alignment} bytes")
        info = _sized(tensor, start + tensor.offset)
        if info.offset + info.size > file_size:
            raise corrupt(
                f"the file is truncated: tensor {info.name} ends at byte {info.offset + info.size:,}, "
                f"the file has {file_size:,}"
            )
        tensors[info.name] = info
    return tensors


def _sized(tensor: _RawTensor, offset: int) -> TensorInfo:
    try:
        kind = GGMLQuantizationType(tensor.type)
    except ValueError:
        raise unsupported(f"tensor {tensor.name} has the unknown type number {tensor.type}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if prod(tensor.shape) == 0 or tensor.shape[-1] % block:
        raise corrupt(
            f"tensor {tensor.name} has {tensor.shape[-1]} columns, {kind.name} needs a multiple of {block}"
        )
    return TensorInfo(tensor.name, kind, tensor.shape, offset, prod(tensor.shape) // block * block_bytes)


class _Cursor:
    """A position in the file; every read is checked against its end."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self.at = 0

    def plausible(self, count: int, smallest: int) -> int:
        """`count` when so many items of at least `smallest` bytes can still follow."""
        if count * smallest > len(self._data) - self.at:
            raise corrupt("the file is truncated inside its header, or the header is damaged")
        return count

    def take(self, size: int) -> bytes:
        self.plausible(size, 1)
        self.at += size
        return self._data[self.at - size : self.at]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        self.plausible(count, 8)
        data, at, unpack = self._data, self.at, _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                end = at + 8 + unpack(data, at)[0]
                found.append(data[at + 8 : end].decode())
                at = end
        except struct.error:
            at = len(data) + 1
        except UnicodeDecodeError:
            raise corrupt("the header is damaged: a text is not UTF-8") from None
        self.plausible(at - self.at, 1)
        self.at = at
        return found

    def numbers(
        self, dtype: np.dtype[np.generic], count: int
    ) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return np.frombuffer(self.take(self.plausible(count, dtype.itemsize) * dtype.itemsize), dtype)
