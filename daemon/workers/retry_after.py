"""For how long a client is asked to stay away: seconds that were measured, as a header can say them."""

from __future__ import annotations

import math
from dataclasses import dataclass

# OpenAI's SDKs take a longer wait for a mistake, ignore it and come back within seconds.
_LONGEST_S = 60


def retry_after(seconds: float) -> int:
    """The value of Retry-After for a wait that is expected to take `seconds`: 1 to 60."""
    return max(1, min(math.ceil(seconds), _LONGEST_S))


@dataclass(slots=True)
class LoadClock:
    """How long loads of one model take. Times are on a monotonic clock."""

    begun: float = 0.0
    last_s: float | None = None

    def begin(self, now: float) -> None:
        """A load has begun."""
        self.begun = now

    def end(self, now: float) -> None:
        """The model is loaded."""
        self.last_s = now - self.begun

    def left(self, now: float) -> float:
        """Seconds that the running load will still take: what the last one took, else as long again as it has taken."""
        elapsed = now - self.begun
        return elapsed if self.last_s is None else max(self.last_s - elapsed, 0.0)
