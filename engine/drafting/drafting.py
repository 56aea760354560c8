"""Speculation for one sequence: look for a draft, cut it to what pays, learn from what the model made of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .acceptance import AcceptanceRates
from .counts import DraftCounter
from .drafters import GRAMMAR, Draft, Drafter, first_draft
from .length import Pays, Promise
from .model_drafter import ModelDrafter
from .suffix_index import SuffixIndex


@dataclass(slots=True)
class Drafting:
    """`text` has all known tokens of the sequence, as the drafters see them. `model` drafts too, where there is one."""

    text: SuffixIndex
    drafters: tuple[Drafter, ...]
    rates: AcceptanceRates
    counter: DraftCounter
    model: ModelDrafter | None = None
    # What there was to offer, and the part of it that is being verified.
    _offered: list[Draft] = field(default_factory=list, init=False)
    _chosen: Draft | None = field(default=None, init=False)

    def draft(self, most: int, pays: Pays, to_come: int = 0) -> tuple[int, ...]:
        """The tokens to verify in the next step, at most `most`. `pays` says how much of a draft is worth it, and
        about `to_come` tokens are still to be written."""
        begun = time.perf_counter()
        self._offered, self._chosen = [], None
        if most > 0:
            promise = self._look_up(most, pays)
            self._ask_model(most, pays, promise.gain, to_come)
        self.counter.looked(time.perf_counter() - begun)
        return self._chosen.tokens if self._chosen else ()

    def settle(self, emitted: Sequence[int]) -> None:
        """Takes note of the tokens that the step gave.

        They tell about each draft as far as they go, whether it was verified or not: looking on costs nothing, and a
        source that did not pay for a while is found out when it would again.
        """
        for offered in self._offered:
            seen = min(len(emitted), len(offered.tokens))
            right = next((i for i in range(seen) if emitted[i] != offered.tokens[i]), seen)
            self.rates.record(offered.source, right, int(right < seen))
        self.counter.step(len(emitted), self._chosen)
        self.text.extend(emitted)
        if self.model is not None:
            self.model.stepped()

    def close(self) -> None:
        """At the end of the request."""
        if self.model is not None:
            self.model.close()

    def _look_up(self, most: int, pays: Pays) -> Promise:
        offered = first_draft(self.drafters, most)
        if offered is None:
            return Promise()
        self._offered.append(offered)
        promise = pays(self.rates[offered.source], len(offered.tokens))
        self._chosen = offered.first(promise.length) if promise.length else None
        return promise

    def _ask_model(self, most: int, pays: Pays, rival: float, to_come: int) -> None:
        """What was looked up costs nothing, so the draft model is heard only where it promises more; a grammar's
        tokens are certain."""
        if self.model is None or (self._offered and self._offered[0].source == GRAMMAR):
            return
        offer = self.model.offer(most, pays, self.rates, rival, to_come)
        if offer is not None:
            self._offered.append(offer.draft)
            if offer.usable:
                self._chosen = offer.draft.first(offer.usable)
