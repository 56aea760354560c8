"""How fast the engine goes, measured while it works, and the prefill chunk that follows from it."""

from __future__ import annotations

from ..config import EngineConfig

# A step's rate moves the average by this much: a few steps forget what was true before.
_WEIGHT = 0.3
# Attention makes a token dearer the more stand before it, so rates are kept apart by depth, in steps of this.
_DEPTH = 1024


class Pace:
    """Moving averages: prefill and decode rates in tokens per second, and the length of replies; 0 until the first."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._by_depth: dict[int, float] = {}
        self.prefill_rate = 0.0
        self.decode_rate = 0.0
        self.reply_tokens = 0.0

    def chunk(self, past: int) -> int:
        """Prefill tokens for about `chunk_seconds` of work behind `past` tokens, in steps of the smallest chunk."""
        rate = self._rate_at(past // _DEPTH)
        if not rate:
            return self._config.first_chunk
        unit = self._config.min_chunk
        wanted = int(rate * self._config.chunk_seconds) // unit * unit
        return max(unit, min(wanted, self._config.max_chunk))

    def prefilled(self, tokens: int, past: int, seconds: float) -> None:
        """Counts a prefill step; short ones say little about the rate and are left out."""
        if tokens >= self._config.min_chunk:
            rate, depth = tokens / seconds, past // _DEPTH
            self.prefill_rate = _moved(self.prefill_rate, rate)
            self._by_depth[depth] = _moved(self._by_depth.get(depth, 0.0), rate)

    def decoded(self, tokens: int, seconds: float) -> None:
        """Counts a decode step that gave so many tokens."""
        self.decode_rate = _moved(self.decode_rate, tokens / seconds)

    def replied(self, tokens: int) -> None:
        """Counts a whole reply."""
        self.reply_tokens = _moved(self.reply_tokens, tokens)

    def _rate_at(self, depth: int) -> float:
        """The rate measured at this depth, else at the nearest smaller one, else at any."""
        known = [d for d in self._by_depth if d <= depth]
        return self._by_depth[max(known)] if known else max(self._by_depth.values(), default=0.0)


def _moved(average: float, value: float) -> float:
    return value if not average else average + _WEIGHT * (value - average)
