"""How likely the tokens of a reply were; `protocol` has it too."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOP_LOGPROBS = 20
"""Alternatives that a request may ask for at each token, as OpenAI allows."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token as the bytes that it stands for, and the natural logarithm of its probability.

    `top` are the likeliest tokens of its place, likeliest first. The probabilities are the model's own, before
    temperature, penalties, biases, grammar and cuts.
    """

    text: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LogprobsDelta:
    """The tokens of the text that comes next, for requests that want to know."""

    request_id: str
    tokens: tuple[TokenLogprob, ...]
