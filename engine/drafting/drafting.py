"""Speculation for one sequence: look for a draft, cut it to what pays, learn from what the model made of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .acceptance import AcceptanceRates
from .counts import DraftCounter
from .drafters import Draft, Drafter, first_draft
from .suffix_index import SuffixIndex


@dataclass(slots=True)
class Drafting:
    """`text` has all known tokens of the sequence, as the drafters see them."""

    text: SuffixIndex
    drafters: tuple[Drafter, ...]
    rates: AcceptanceRates
    counter: DraftCounter
    # What the drafter had to offer, and the part of it that is being verified.
    _offered: Draft | None = field(default=None, init=False)
    _chosen: Draft | None = field(default=None, init=False)

    def draft(self, most: int, length: Callable[[float, int], int]) -> tuple[int, ...]:
        """The tokens to verify in the next step, at most `most`. `length(rate, n)` says how much of a draft of n
        tokens pays that are right with probability `rate` each."""
        begun = time.perf_counter()
        self._offered = first_draft(self.drafters, most) if most > 0 else None
        self._chosen = None
        if self._offered is not None:
            count = length(self.rates[self._offered.source], len(self._offered.tokens))
            self._chosen = self._offered.first(count) if count else None
        self.counter.looked(time.perf_counter() - begun)
        return self._chosen.tokens if self._chosen else ()

    def settle(self, emitted: Sequence[int]) -> None:
        """Takes note of the tokens that the step gave.

        They tell about the draft as far as they go, whether it was verified or not: looking on costs nothing, and a
        source that did not pay for a while is found out when it would again.
        """
        if self._offered is not None:
            seen = min(len(emitted), len(self._offered.tokens))
            right = next((i for i in range(seen) if emitted[i] != self._offered.tokens[i]), seen)
            self.rates.record(self._offered.source, right, int(right < seen))
        self.counter.step(len(emitted), self._chosen)
        self.text.extend(emitted)
