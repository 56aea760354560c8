"""An encoder that is loaded, whatever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..protocol import ModelInfo, SelfTest
from .tokenizer import WordPieceTokenizer

Vectors = NDArray[np.float32]


class EncoderRunner(Protocol):
    """Computes vectors; called on one thread only."""

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """float32 [texts, dimensions] of at least one text of tokens, which may differ in length. The caller owns
        the array. Raises RuntimeError when the device fails."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """All that a worker needs to embed texts. At most `cache_size` vectors are remembered."""

    runner: EncoderRunner
    tokenizer: WordPieceTokenizer
    info: ModelInfo
    self_test: SelfTest
    cache_size: int
    cache_hit: bool = False
