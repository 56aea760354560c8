"""Vectors of texts that were computed before."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Tokens = tuple[int, ...]


class EmbeddingCache:
    """The last `size` vectors by the tokens of their texts, the least recently used forgotten first; 0 keeps none."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._vectors: OrderedDict[Tokens, Vector] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def get(self, tokens: Tokens) -> Vector | None:
        """The vector, which is then the most recently used."""
        vector = self._vectors.get(tokens)
        if vector is not None:
            self._vectors.move_to_end(tokens)
        return vector

    def put(self, tokens: Tokens, vector: Vector) -> None:
        """Remembers a vector that nobody changes any more."""
        self._vectors[tokens] = vector
        self._vectors.move_to_end(tokens)
        while len(self._vectors) > self._size:
            self._vectors.popitem(last=False)
