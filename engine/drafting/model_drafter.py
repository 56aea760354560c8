"""Drafts of a draft model for one sequence. Unlike the others they cost time for each token, so it decides first:

    does it promise more than what was looked up?
      yes, and the rest of the text is worth catching up with ──▶ a chunk, or else a draft to be verified
      no, but there is an allowance ──────────────────────────▶ a chunk, or else one token to compare with the text

The text that the draft model has not computed yet is caught up with a chunk a step, and until then nothing is drafted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from .acceptance import AcceptanceRates
from .draft_model import CHUNK, DraftModel, DraftPool, DraftSession
from .drafters import MODEL, Draft
from .length import Pays
from .outlay import Allowance, DraftCosts
from .step_costs import StepCosts
from .suffix_index import SuffixIndex

if TYPE_CHECKING:
    from ..sequence import Sequence

# After so many trials a worker knows what to think of its draft model. Until then a token is drafted now and then just
# to compare it, where no more than so many tokens are to be caught up with: to find that out in a second request, whose
# prompt has to be caught up with too, would be dearer.
_TRIALS, _FEW_TOKENS = 10, 16
# For so many steps a draft model that does not pay is not thought of again; its rate changes slowly.
_PAUSE = 7
# What is caught up with is there for the next turns too, and agents take several.
_TURNS = 4

Allows = Callable[[tuple[int, ...]], int]


class Offer(NamedTuple):
    """A draft, of which the first `usable` tokens are worth a step: none of a draft that is only to be compared."""

    draft: Draft
    usable: int


class ModelDrafter:
    """One for each sequence, whose known tokens are `text`. `savings` is the worker's allowance for catching up.

    A draft ends where `is_cancelled` says so, and behind a token that `allows` (of a grammar) refuses.
    """

    def __init__(
        self,
        model: DraftModel,
        session: DraftSession,
        text: SuffixIndex,
        costs: DraftCosts,
        savings: Allowance,
        is_cancelled: Callable[[], bool],
        allows: Allows,
    ) -> None:
        self._model = model
        self._session = session
        self._text = text
        self._costs = costs
        self._savings = savings
        self._allowance = Allowance()
        self._is_cancelled = is_cancelled
        self._allows = allows
        self._pause = 0

    def offer(
        self, most: int, pays: Pays, rates: AcceptanceRates, rival: float, to_come: int
    ) -> Offer | None:
        """A draft of at most `most` tokens, where it promises more than the gain of the `rival`, 1 for none.

        About `to_come` tokens of the reply are still to be written. None when there is nothing, or nothing yet.
        """
        known = len(self._text)
        most = min(most, self._model.context_length - known)
        if most < 1 or self._session.shut:
            return None
        if self._pause:
            self._pause -= 1
            return None
        token = self._costs.token(known)
        promise = pays(rates[MODEL], most, token)
        # The last known token is computed anyway, when the first one is drafted.
        behind = self._costs.catching_up(self._session.behind - 1, known)
        if promise.gain > rival and behind <= _TURNS * to_come * (1 / rival - 1 / promise.gain):
            return self._drafted(promise.length)
        if rates.trials(MODEL) < _TRIALS and self._session.behind <= _FEW_TOKENS:
            return self._drafted(1, is_probe=True)
        self._pause = 0 if promise.length else _PAUSE
        # Where it would not pay if it were always right, there is nothing to find out.
        return self._probe(token, behind) if pays(1.0, most, token).length else None

    def stepped(self) -> None:
        """A decode step of the sequence was run."""
        self._allowance.earn()
        self._savings.earn()

    def close(self) -> None:
        """At the end of the request."""
        self._session.close()

    def _probe(self, token: float, behind: float) -> Offer | None:
        """Finds out on the allowance what the draft model would say; catching up costs `behind`, drafting `token`."""
        if not (self._savings.covers(behind) and self._allowance.covers(token)):
            return None
        left, begun = self._session.behind, time.perf_counter()
        offer = self._drafted(1, is_probe=True)
        if offer is None:
            self._savings.spend(behind * (left - self._session.behind) / left)
        else:
            # A lone step between those of another model takes longer than the table says.
            spent = self._costs.spent(time.perf_counter() - begun, len(self._text))
            self._savings.spend(behind)
            self._allowance.spend(max(token, spent - behind))
        return offer

    def _drafted(self, length: int, *, is_probe: bool = False) -> Offer | None:
        drafted = self._advance(length)
        if not drafted:
            return None
        return Offer(Draft(drafted, MODEL), 0 if is_probe else self._allows(drafted))

    def _advance(self, length: int) -> tuple[int, ...]:
        """Drafts, or catches up by a chunk where more than that is missing. Drafts nothing without room."""
        if self._session.behind > CHUNK:
            self._session.catch_up()
            return ()
        drafted: tuple[int, ...] = ()
        for token in islice(self._session.guesses(length), length):
            drafted = (*drafted, token)
            is_refused = self._allows(drafted) < len(drafted)
            if token in self._model.ends or is_refused or self._is_cancelled():
                break
        return drafted


class ModelDrafters:
    """Begins the drafters of all sequences of a worker. `costs` are those of the model that is drafted for."""

    def __init__(self, model: DraftModel, costs: StepCosts) -> None:
        self.pool = DraftPool(model)
        self._costs = DraftCosts(self.pool.costs.table, costs, model.share)
        self._savings = Allowance()

    def begin(self, sequence: Sequence, text: SuffixIndex) -> ModelDrafter:
        """The drafter of a sequence; it takes nothing of the pool until it has something to compute."""
        session = DraftSession(self.pool, sequence.namespace, text, sequence.sampler.guess)
        grammar = sequence.sampler.grammar
        return ModelDrafter(
            self.pool.model,
            session,
            text,
            self._costs,
            self._savings,
            lambda: sequence.cancelled is not None,
            len if grammar is None else grammar.allows,
        )
