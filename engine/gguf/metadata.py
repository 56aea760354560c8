"""Typed access to the key-value section of a GGUF file.

A key of the wrong type is a broken file; the error names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..model_errors import corrupt

NumberArray: TypeAlias = NDArray[np.generic]
MetadataValue: TypeAlias = int | float | bool | str | list[str] | NumberArray


class Metadata:
    """The keys of one file. Every getter returns `default` for a missing key and raises ModelFileError
    (`corrupt_model`) for a value of another type."""

    def __init__(self, values: Mapping[str, MetadataValue]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str, default: MetadataValue | None = None) -> MetadataValue | None:
        """The value as it was read; arrays of numbers are NumPy arrays."""
        return self._values.get(key, default)

    def integer(self, key: str, default: int | None = None) -> int | None:
        value = self._values.get(key, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise corrupt(f"{key} is not a whole number")

    def number(self, key: str, default: float) -> float:
        value = self._values.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
            return float(value)
        raise corrupt(f"{key} is not a finite number")

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if isinstance(value, bool):
            return value
        raise corrupt(f"{key} is not true or false")

    def text(self, key: str, default: str | None = None) -> str | None:
        value = self._values.get(key, default)
        if value is None or isinstance(value, str):
            return value
        raise corrupt(f"{key} is not a text")

    def texts(self, key: str) -> list[str]:
        """A list of texts; a missing key is an empty list."""
        value = self._values.get(key)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise corrupt(f"{key} is not a list of texts")

    def numbers(self, key: str) -> NumberArray | None:
        """An array of numbers [n], None when the key is missing."""
        value = self._values.get(key)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise corrupt(f"{key} is not a list of numbers")


class ArchitectureMetadata:
    """The keys below `<architecture>.`, such as `llama.block_count`."""

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def key(self, suffix: str) -> str:
        return f"{self._prefix}.{suffix}"

    def __contains__(self, suffix: str) -> bool:
        return self.key(suffix) in self._metadata

    def size(self, suffix: str, default: int | None = None) -> int:
        """A positive size. An array is taken when all its entries agree, as converters write for some models."""
        key = self.key(suffix)
        value = self._metadata.raw(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = int(value[0])
        if value is None:
            raise corrupt(f"{key} is missing")
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
            return value
        raise corrupt(f"{key} is not one positive whole number")

    def number(self, suffix: str, default: float) -> float:
        return self._metadata.number(self.key(suffix), default)

    def epsilon(self, suffix: str) -> float:
        """What a norm adds under its root, between 0 and 1."""
        value = self.number(suffix, 0.0)
        if not 0 < value < 1:
            raise corrupt(f"{self.key(suffix)} is missing or senseless")
        return value

    def text(self, suffix: str, default: str) -> str:
        return self._metadata.text(self.key(suffix), default) or default

    def raw(self, suffix: str) -> MetadataValue | None:
        return self._metadata.raw(self.key(suffix))
