"""Which texts are computed next, and what is still missing of each request. Pure: no threads, no clock, no device.

A step takes one text of each request in turn, so that a long list holds up a short one by a step at most, and many
short requests share one step.

    requests   a1 a2 a3 …    b1    c1 c2          step   a1 b1 c1 a2 c2 a3 …   until the step is full
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .cache import EmbeddingCache, Tokens, Vector


@dataclass(slots=True, eq=False)
class EmbeddingJob:
    """One request. A text that it has twice is computed once. Times are on the monotonic clock."""

    request_id: str
    texts: Sequence[Tokens]
    arrived: float
    tokenize_s: float = 0.0
    started: float | None = None
    compute_s: float = 0.0
    cached_tokens: int = 0
    vectors: dict[Tokens, Vector] = field(default_factory=dict)
    waiting: deque[Tokens] = field(default_factory=deque)

    def look_up(self, cache: EmbeddingCache) -> None:
        """Takes what is remembered; the rest waits, the longest texts first, which keeps padding low."""
        found = {text: cache.get(text) for text in dict.fromkeys(self.texts)}
        self.vectors = {text: vector for text, vector in found.items() if vector is not None}
        missing = (text for text, vector in found.items() if vector is None)
        self.waiting = deque(sorted(missing, key=len, reverse=True))
        self.cached_tokens = sum(len(text) for text in self.texts if text in self.vectors)

    @property
    def tokens(self) -> int:
        """The tokens of all texts."""
        return sum(map(len, self.texts))

    @property
    def tokens_left(self) -> int:
        """Tokens that no step has taken yet."""
        return sum(map(len, self.waiting))

    @property
    def is_done(self) -> bool:
        return all(text in self.vectors for text in self.texts)

    def data(self) -> bytes:
        """All vectors in the order of the texts: little-endian float32."""
        return np.stack([self.vectors[text] for text in self.texts]).astype("<f4").tobytes()


@dataclass(slots=True)
class EmbeddingQueue:
    """The requests that are not done, the one whose turn it is first."""

    _jobs: dict[str, EmbeddingJob] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[EmbeddingJob]:
        return iter(self._jobs.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._jobs

    def add(self, job: EmbeddingJob) -> None:
        self._jobs[job.request_id] = job

    def remove(self, request_id: str) -> None:
        del self._jobs[request_id]

    def next_step(self, most_tokens: int) -> list[tuple[EmbeddingJob, Tokens]]:
        """The texts of a step of at most `most_tokens` tokens with padding, or one longer text; none when none waits.

        The request whose text did not fit comes first in the next step.
        """
        turn = deque(job for job in self if job.waiting)
        step: list[tuple[EmbeddingJob, Tokens]] = []
        longest = 0
        while turn:
            job = turn[0]
            longest = max(longest, len(job.waiting[0]))
            if step and (len(step) + 1) * longest > most_tokens:
                break
            step.append((job, job.waiting.popleft()))
            turn.rotate(-1)
            if not job.waiting:
                turn.pop()
        served = [job for job in self if job not in turn]
        self._jobs = {job.request_id: job for job in (*turn, *served)}
        return step
