"""`logprobs` and `logit_bias` of OpenAI's chat: what a request may ask, and the shape of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...engine.protocol import MOST_TOP_LOGPROBS, TokenLogprob
from ..errors import InvalidRequest

MOST_BIASES = 1024
"""Tokens that a request may have a bias for."""
LARGEST_BIAS = 100
TOKEN_ID = re.compile(r"[0-9]{1,9}")
"""What a key of `logit_bias` must match as a whole."""


def wanted_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many alternatives are to be told for each token; None if nothing is. Raises InvalidRequest."""
    most = MOST_TOP_LOGPROBS
    if top_logprobs and not logprobs:
        raise _invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    if not 0 <= (top_logprobs or 0) <= most:
        raise _invalid(f"top_logprobs must be between 0 and {most}, got {top_logprobs}", "top_logprobs")
    return top_logprobs or 0 if logprobs else None


def biases(logit_bias: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Ids of tokens with what is added to their logits. Raises InvalidRequest."""
    given = logit_bias or {}
    if len(given) > MOST_BIASES:
        raise _invalid(f"logit_bias: at most {MOST_BIASES} tokens, got {len(given)}", "logit_bias")
    return tuple({_token(key): _bias(key, value) for key, value in given.items()}.items())


def logprobs_object(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's `logprobs` of a choice."""
    content = [
        _entry(token.text, token.logprob) | {"top_logprobs": [_entry(*other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: bytes, logprob: float) -> dict[str, Any]:
    """A token may be a part of a character, so its bytes are told too."""
    return {"token": text.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(text)}


def _token(key: str) -> int:
    if TOKEN_ID.fullmatch(key) is None:
        raise _invalid(f"logit_bias: {key[:64]!r} is not the id of a token", "logit_bias")
    return int(key)


def _bias(key: str, value: float) -> float:
    if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
        limits = f"between {-LARGEST_BIAS} and {LARGEST_BIAS}"
        raise _invalid(f"logit_bias.{key} must be {limits}, got {value}", "logit_bias")
    return value


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
