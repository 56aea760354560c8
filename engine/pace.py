"""How fast the engine goes, measured while it works, and the prefill chunk that follows from it."""

from __future__ import annotations

from .config import EngineConfig

# A step's rate moves the average by this much: a few steps forget what was true before.
_WEIGHT = 0.3


class Pace:
    """Moving averages of prefill and decode rates, in tokens per second; 0 until the first step."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.prefill_rate = 0.0
        self.decode_rate = 0.0

    @property
    def chunk(self) -> int:
        """Prefill tokens for about `chunk_seconds` of work, in steps of the smallest chunk."""
        if not self.prefill_rate:
            return self._config.first_chunk
        unit = self._config.min_chunk
        wanted = int(self.prefill_rate * self._config.chunk_seconds) // unit * unit
        return max(unit, min(wanted, self._config.max_chunk))

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Counts a prefill step; short ones say little about the rate and are left out."""
        if tokens >= self._config.min_chunk:
            self.prefill_rate = _moved(self.prefill_rate, tokens / seconds)

    def decoded(self, tokens: int, seconds: float) -> None:
        self.decode_rate = _moved(self.decode_rate, tokens / seconds)


def _moved(average: float, value: float) -> float:
    return value if not average else average + _WEIGHT * (value - average)
