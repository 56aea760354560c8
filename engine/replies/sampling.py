"""Logits to token: penalties, biases, the grammar, temperature, top-k, top-p, min-p, in this order, then one random
number.

The random number of a position comes from a counter-based generator keyed by the request's seed. So with the same
logits the text depends on tokens, parameters and seed alone, not on batching, drafting or what ran before (promise 4);
exact mode sees to it that the logits are the same.
Order and meaning are those of Hugging Face's logits warpers; presence and frequency penalties are OpenAI's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..constraints.state import Grammar
from ..protocol import SamplingParams

Row = NDArray[np.float32]

# A top-p cut needs the likeliest tokens in order. Sorting a whole vocabulary costs milliseconds; this many
# nearly always hold the mass, and when they do not the whole row is sorted.
_HEAD = 1024


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling parameters with nothing left open."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def resolve_sampling(asked: SamplingParams, model: SamplingParams, fresh_seed: int) -> ResolvedSampling:
    """Request first, then the model's own defaults, then temperature 1 with nothing cut off."""

    def first(*values: float | None) -> float:
        return next(value for value in values if value is not None)

    return ResolvedSampling(
        temperature=first(asked.temperature, model.temperature, 1.0),
        top_k=int(first(asked.top_k, model.top_k, 0)),
        top_p=first(asked.top_p, model.top_p, 1.0),
        min_p=first(asked.min_p, model.min_p, 0.0),
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        seed=fresh_seed if asked.seed is None else asked.seed,
        logit_bias=asked.logit_bias,
    )


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of a position: Philox 4x64 with the seed as key, the position as counter."""
    bits = np.random.Philox(key=seed & (2**64 - 1), counter=[0, 0, 0, position])
    return float(np.random.Generator(bits).random())


class Sampler:
    """Chooses the tokens of one request, within its `grammar` if it has one; keeps the counts that penalties need."""

    def __init__(
        self, params: ResolvedSampling, prompt: Iterable[int], grammar: Grammar | None = None
    ) -> None:
        self.params = params
        self.grammar = grammar
        self._output_counts: dict[int, int] = {}
        self._seen: set[int] = set(prompt) if params.repetition_penalty != 1.0 else set()

    def sample(self, logits: Row, position: int) -> int:
        """The token at `position` given its logits, float32 [vocab_size], which are not changed.

        Raises BrokenConstraint where the grammar allows no token.
        """
        logits = self._weighed(logits)
        if self.grammar is not None:
            logits = self.grammar.masked(logits)
        if self.params.is_greedy:
            return int(logits.argmax())
        return draw(logits, self.params, uniform(self.params.seed, position))

    def guess(self, logits: Row) -> int:
        """The likeliest token by a draft model's logits, with the penalties and biases that the model's own will get.

        The grammar is left out: it is not that far yet.
        """
        return int(self._weighed(logits).argmax())

    @property
    def is_complete(self) -> bool:
        """Whether the grammar leaves nothing but the end of the turn."""
        return self.grammar is not None and self.grammar.is_complete

    def observe(self, token: int) -> None:
        """Tells that `token` became part of the output."""
        if self.grammar is not None:
            self.grammar.observe(token)
        if self.params.has_penalties:
            self._output_counts[token] = self._output_counts.get(token, 0) + 1
            self._seen.add(token)

    def _weighed(self, logits: Row) -> Row:
        if self.params.has_penalties:
            logits = self._penalised(logits)
        return self._biased(logits) if self.params.logit_bias else logits

    def _penalised(self, logits: Row) -> Row:
        logits = logits.copy()
        if self.params.repetition_penalty != 1.0 and self._seen:
            # Keskar et al. 2019 (CTRL): positive logits are divided, negative ones multiplied.
            seen = np.fromiter(self._seen, np.int64)
            values, penalty = logits[seen], np.float32(self.params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._output_counts:
            tokens = np.fromiter(self._output_counts.keys(), np.int64)
            counts = np.fromiter(self._output_counts.values(), np.float32)
            logits[tokens] -= self.params.presence_penalty + counts * np.float32(
                self.params.frequency_penalty
            )
        return logits

    def _biased(self, logits: Row) -> Row:
        tokens, biases = zip(*self.params.logit_bias, strict=True)
        logits = logits.copy()
        logits[list(tokens)] += np.array(biases, np.float32)
        return logits


def draw(logits: Row, params: ResolvedSampling, u: float) -> int:
    """Inverts the distribution that temperature, top-k, top-p and min-p leave at `u` in [0, 1)."""
    candidates, probabilities = _distribution(logits, params)
    cumulative = np.cumsum(probabilities)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(candidates[min(index, len(candidates) - 1)])


def _distribution(logits: Row, params: ResolvedSampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens left and their weights (not normalised), likeliest first where an order was needed."""
    scaled = logits.astype(np.float64) / params.temperature
    if params.top_k and params.top_k < len(scaled):
        tokens = largest(scaled, params.top_k)
    else:
        tokens = np.arange(len(scaled))
    weights = np.exp(scaled[tokens] - scaled[tokens].max())
    if params.top_p < 1.0:
        keep = _nucleus(weights, params.top_p)
        tokens, weights = tokens[keep], weights[keep]
    if params.min_p > 0.0:
        likely = weights >= params.min_p * weights.max()
        tokens, weights = tokens[likely], weights[likely]
    return tokens, weights


def largest(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest values, largest first; equal values in order of index."""
    head = np.sort(np.argpartition(-values, count - 1)[:count])
    return head[np.argsort(-values[head], kind="stable")]


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Indices of the smallest set of likeliest tokens whose mass reaches `top_p`, likeliest first."""
    wanted = top_p * weights.sum()
    order = largest(weights, min(_HEAD, len(weights)))
    if weights[order].sum() < wanted:
        order = largest(weights, len(weights))
    reached = int(np.searchsorted(np.cumsum(weights[order]), wanted))
    return order[: reached + 1]
