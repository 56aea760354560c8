"""What the engine of one worker is set to. Frozen: nothing is written after it was made."""

from __future__ import annotations

from dataclasses import dataclass

# What two current cores reach on int8 products; only the first chunk of a worker depends on this guess.
_ASSUMED_FLOPS = 400e9


@dataclass(frozen=True)
class EngineConfig:
    """Limits and policies of the engine loop.

    exact: no step runs a single row, so that logits do not depend on how tokens were grouped (see
    docs/exactness.md). chunk_seconds: how long one prefill chunk may take, which bounds the wait for a cancel.
    """

    context_length: int
    exact: bool = False
    chunk_seconds: float = 0.5
    min_chunk: int = 32
    first_chunk: int = 256
    max_chunk: int = 512

    def __post_init__(self) -> None:
        assert self.context_length > 0
        assert 0 < self.min_chunk <= self.first_chunk <= self.max_chunk


def first_chunk(parameters: int) -> int:
    """The prefill chunk before any rate was measured: about `chunk_seconds` of work, 2 operations a weight."""
    wanted = EngineConfig.chunk_seconds * _ASSUMED_FLOPS / (2 * parameters)
    unit = EngineConfig.min_chunk
    return max(unit, min(int(wanted) // unit * unit, EngineConfig.max_chunk))
