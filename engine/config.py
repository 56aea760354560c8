"""What the engine of one worker is set to. Frozen: nothing is written after it was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# What two current cores reach on int8 products; only the first chunk of a worker depends on this guess.
_ASSUMED_FLOPS = 400e9


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """How many tokens a step may draft: for a request that does not say, and at most. 0 is no speculation."""

    default: int = 0
    most: int = 0

    def limit(self, asked: int | None) -> int:
        """The limit in force for a request."""
        return min(self.default if asked is None else asked, self.most)


@dataclass(frozen=True)
class EngineConfig:
    """Limits and policies of the engine loop.

    exact: no step runs a single row, so that logits do not depend on how tokens were grouped (see
    docs/exactness.md). chunk_seconds: how long one prefill chunk may take, which bounds the wait for a cancel.
    turn_seconds: how long a request has the engine before another one may have it. max_sessions: how many may take
    turns (see `scheduler`). session_idle_s: how long a conversation without requests keeps its name; 0 is for ever.
    reply_room: for how many tokens of a reply a request takes blocks at a time.
    draft_limits: speculation. step_costs_file: where what steps cost is kept, if anywhere.
    """

    context_length: int
    exact: bool = False
    chunk_seconds: float = 0.5
    min_chunk: int = 32
    first_chunk: int = 256
    max_chunk: int = 512
    turn_seconds: float = 1.0
    max_sessions: int = 8
    session_idle_s: float = 0.0
    reply_room: int = 256
    draft_limits: DraftLimits = DraftLimits()
    step_costs_file: Path | None = None

    def __post_init__(self) -> None:
        assert self.context_length > 0
        assert self.max_sessions > 0
        assert 0 < self.min_chunk <= self.first_chunk <= self.max_chunk


def first_chunk(parameters: int) -> int:
    """The prefill chunk before any rate was measured: about `chunk_seconds` of work, 2 operations a weight."""
    wanted = EngineConfig.chunk_seconds * _ASSUMED_FLOPS / (2 * parameters)
    unit = EngineConfig.min_chunk
    return max(unit, min(int(wanted) // unit * unit, EngineConfig.max_chunk))
