"""Counts what drafts came to, for a request and for the worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..messages.drafts import DrafterCounts, DraftStats
from .drafters import Draft


@dataclass(slots=True)
class _Drafter:
    attempts: int = 0
    drafted: int = 0
    accepted: int = 0
    full: int = 0


@dataclass(slots=True)
class DraftCounter:
    """Sums over decode steps. What is counted in a counter is counted in its `total` too."""

    total: DraftCounter | None = None
    _steps: int = 0
    _tokens: int = 0
    _emitted: int = 0
    _seconds: float = 0.0
    _drafters: dict[str, _Drafter] = field(default_factory=dict)
    _drafted_at: list[int] = field(default_factory=list)
    _accepted_at: list[int] = field(default_factory=list)

    def looked(self, seconds: float) -> None:
        """A draft was looked for, found or not."""
        self._seconds += seconds
        if self.total is not None:
            self.total.looked(seconds)

    def step(self, emitted: int, draft: Draft | None) -> None:
        """A decode step gave `emitted` tokens; `draft` is what it verified."""
        self._steps += 1
        self._tokens += emitted
        if draft is not None:
            self._count(draft, emitted)
        if self.total is not None:
            self.total.step(emitted, draft)

    def stats(self) -> DraftStats:
        return DraftStats(
            steps=self._steps,
            tokens=self._tokens,
            emitted=self._emitted,
            seconds=self._seconds,
            drafters=tuple(
                DrafterCounts(name, d.attempts, d.drafted, d.accepted, d.full)
                for name, d in self._drafters.items()
            ),
            drafted_at=tuple(self._drafted_at),
            accepted_at=tuple(self._accepted_at),
        )

    def _count(self, draft: Draft, emitted: int) -> None:
        length = len(draft.tokens)
        # The last token of a step is the model's own, unless the text ended inside the draft.
        accepted = min(emitted - 1, length)
        self._emitted += emitted
        drafter = self._drafters.setdefault(draft.source.drafter, _Drafter())
        drafter.attempts += 1
        drafter.drafted += length
        drafter.accepted += accepted
        drafter.full += accepted == length
        missing = length - len(self._drafted_at)
        self._drafted_at += [0] * missing
        self._accepted_at += [0] * missing
        for place in range(length):
            self._drafted_at[place] += 1
            self._accepted_at[place] += place < accepted
