"""How likely the next token of a draft is right, learned from drafts that were and could have been verified."""

from __future__ import annotations

from .drafters import MODEL, Source

# A trial counts this much less with each one after it: about the last fifty matter.
_DECAY = 0.98
# The prior counts as much as this many trials.
_PRIOR_TRIALS = 5.0
# Before anything was learned, by the length of the match. Somewhat less than source code gives (0.17, 0.3, 0.53, 0.7,
# 0.7): to look on costs nothing, a wrong draft does.
_FIRST_GUESS = {1: 0.1, 2: 0.2, 4: 0.35, 8: 0.6, 16: 0.8, 32: 0.9}
# What the small models of a family reach for the large ones.
_FIRST_GUESS_OF_A_MODEL = 0.7


class AcceptanceRates:
    """The share of drafted tokens that are right, given that all before them were, by source.

    A request's rates start from those of its `parent`, the worker's, and what it learns is learned there too.
    """

    def __init__(self, parent: AcceptanceRates | None = None) -> None:
        self._parent = parent
        self._cells: dict[Source, tuple[float, float]] = {}

    def __getitem__(self, source: Source) -> float:
        right, trials = self._cells.get(source, (0.0, 0.0))
        prior = _first_guess(source) if self._parent is None else self._parent[source]
        return (right + _PRIOR_TRIALS * prior) / (trials + _PRIOR_TRIALS)

    def trials(self, source: Source) -> float:
        """How many trials the worker's rate rests on, the older ones counted less."""
        return self._cells.get(source, (0.0, 0.0))[1] if self._parent is None else self._parent.trials(source)

    def record(self, source: Source, right: int, wrong: int) -> None:
        """Counts tokens that were right and, at most one of a draft, wrong."""
        old = self._cells.get(source, (0.0, 0.0))
        kept = _DECAY ** (right + wrong)
        self._cells[source] = (old[0] * kept + right, old[1] * kept + right + wrong)
        if self._parent is not None:
            self._parent.record(source, right, wrong)


def _first_guess(source: Source) -> float:
    """What is expected of a source that nothing is known of; a grammar's tokens are right."""
    return _FIRST_GUESS_OF_A_MODEL if source == MODEL else _FIRST_GUESS.get(source.level, 1.0)
