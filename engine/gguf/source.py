"""A GGUF file as a model: configuration, memory-mapped tensors, chat template, sampling defaults.

Opening reads the header only. All that can be known without touching weights is checked here, so that a file
that can't be served is refused before anything large is allocated.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from ..model_errors import ModelFileError, corrupt, unsupported
from ..protocol import SamplingParams
from .header import Header, TensorInfo, read_header
from .metadata import Metadata, MetadataValue
from .model_config import ModelConfig, Shape, read_config, tensor_shapes

__all__ = ["GgufFile", "GgufModel", "ModelFileError", "Tensor", "check_tensors", "map_gguf", "open_gguf"]

_Q = GGMLQuantizationType
SUPPORTED_TYPES = frozenset(
    {_Q.F32, _Q.F16, _Q.BF16, _Q.Q4_0, _Q.Q4_1, _Q.Q5_0, _Q.Q5_1, _Q.Q8_0, _Q.Q4_K, _Q.Q5_K, _Q.Q6_K}
)
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One tensor of a file. `data` is a read-only uint8 view [bytes] into the mapped file, not a copy."""

    info: TensorInfo
    data: NDArray[np.uint8]

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def type(self) -> GGMLQuantizationType:
        return self.info.type

    @property
    def shape(self) -> Shape:
        """Row-major: (rows, columns) or (n,)."""
        return self.info.shape


class GgufFile:
    """A mapped file of whatever architecture. The mapping lives as long as this object or a tensor taken from it."""

    def __init__(self, mapping: mmap.mmap, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> None:
        self._mapping = mapping
        self._bytes = np.frombuffer(mapping, np.uint8)
        self.keys = metadata
        self.tensors = tensors

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name; KeyError when there is none."""
        info = self.tensors[name]
        return Tensor(info, self._bytes[info.offset : info.offset + info.size])

    def metadata(self, key: str, default: MetadataValue | None = None) -> MetadataValue | None:
        return self.keys.raw(key, default)

    @property
    def parameters(self) -> int:
        """The number of weights, tied ones counted once."""
        return sum(info.elements for name, info in self.tensors.items() if name != ROPE_FACTORS)

    def release_pages(self) -> None:
        """Lets the kernel take back the pages of the file that were read; they come back when touched again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)


class GgufModel(GgufFile):
    """An opened, checked file of a decoder."""

    def __init__(self, mapping: mmap.mmap, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> None:
        super().__init__(mapping, metadata, tensors)
        self.config: ModelConfig = read_config(metadata, tensors, self._rope_factors())
        self.chat_template: str | None = metadata.text("tokenizer.chat_template")

    @property
    def sampling_defaults(self) -> SamplingParams:
        """The model maker's advice (`general.sampling.*`); what is not given is None or off."""

        def advice(name: str) -> float | None:
            key = f"general.sampling.{name}"
            return self.keys.number(key, 0.0) if key in self.keys else None

        top_k = advice("top_k")
        return SamplingParams(
            temperature=advice("temp"),
            top_k=None if top_k is None else int(top_k),
            top_p=advice("top_p"),
            min_p=advice("min_p"),
            repetition_penalty=advice("penalty_repeat") or 1.0,
        )

    def _rope_factors(self) -> NDArray[np.float32] | None:
        if not self.has(ROPE_FACTORS):
            return None
        tensor = self.tensor(ROPE_FACTORS)
        if tensor.type is not _Q.F32:
            raise unsupported(f"{ROPE_FACTORS} has the type {tensor.type.name} (F32 is supported)")
        return np.asarray(dequantize(tensor.data.view(np.float32), tensor.type), np.float32)


def open_gguf(path: Path | str) -> GgufModel:
    """Opens and checks a GGUF file with a decoder.

    Raises ModelFileError with the code `corrupt_model` (missing, no file, not GGUF, truncated, damaged, tensors
    missing or misshapen) or `unsupported_model` (architecture, feature or tensor type, each by name).
    """
    mapping, header = map_gguf(path)
    model = GgufModel(mapping, header.metadata, header.tensors)
    config = model.config
    check_tensors(config.architecture, tensor_shapes(config), header.tensors, {ROPE_FACTORS})
    return model


def map_gguf(path: Path | str) -> tuple[mmap.mmap, Header]:
    """Maps a file and reads its header, whatever the architecture. Raises ModelFileError."""
    mapping = _map(Path(path))
    header = read_header(mapping)
    _refuse_part(header.metadata)
    return mapping, header


def _map(path: Path) -> mmap.mmap:
    if path.is_dir():
        raise corrupt("this is a folder; a GGUF file is needed")
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise corrupt("the model file is missing") from None
    except ValueError:
        raise corrupt("the model file is empty") from None
    except OSError as error:
        raise corrupt(f"the model file can't be read: {error.strerror}") from None


def _refuse_part(metadata: Metadata) -> None:
    parts = metadata.integer("split.count", 0) or 0
    if parts > 1:
        raise unsupported(f"this is one of {parts} parts of a model; merge them into one file first")


def check_tensors(
    architecture: str,
    expected: Mapping[str, Shape],
    tensors: Mapping[str, TensorInfo],
    known: AbstractSet[str],
) -> None:
    """Raises ModelFileError unless there are exactly the `expected` tensors, and maybe those that are `known`."""
    for name, shape in expected.items():
        info = tensors.get(name)
        if info is None:
            raise corrupt(f"the tensor {name} is missing")
        if info.shape != shape:
            raise corrupt(f"tensor {name} has the shape {_text(info.shape)}, {_text(shape)} is needed")
        if info.type not in SUPPORTED_TYPES:
            raise unsupported(f"tensor {name} has the type {info.type.name}, which is not supported")
    # A tensor that we would not use means that the model computes something that we would not.
    for name in tensors:
        if name not in expected and name not in known:
            raise unsupported(f"the tensor {name} has no place in a {architecture} model here")


def _text(shape: Shape) -> str:
    return "×".join(str(size) for size in shape)
