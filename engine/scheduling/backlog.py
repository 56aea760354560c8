"""How much work waits in a worker, in tokens and, by the measured rates, in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..sequence import Sequence
from .pace import Pace


class Backlog(NamedTuple):
    """Requests that have not ended: how many, how many of them are queued, and the prompt tokens of those.

    `to_compute` estimates how many of the queued tokens no cache knows. After `seconds` everything will be done, by
    the measured rates; 0 while there are none.
    """

    requests: int
    queued: int
    queued_tokens: int
    to_compute: float
    seconds: float


def measure(sequences: Iterable[Sequence], pace: Pace, computed_share: float) -> Backlog:
    """The backlog that `sequences` are. Of a queued prompt, `computed_share` counts as work.

    Replies are taken to become as long as those before them were on average. A prompt that is to be answered several
    times is computed once.
    """
    sequences = list(sequences)
    queued = sum(len(one.prompt) for one in sequences if one.session is None and one.choice == 0)
    begun = sum(len(one.prompt) - min(one.committed, len(one.prompt)) for one in sequences if one.session)
    to_compute = queued * computed_share
    replies = sum(_left_to_say(one, pace.reply_tokens) for one in sequences)
    return Backlog(
        requests=len(sequences),
        queued=sum(one.session is None for one in sequences),
        queued_tokens=queued,
        to_compute=to_compute,
        seconds=_at(pace.prefill_rate, begun + to_compute) + _at(pace.decode_rate, replies),
    )


def _left_to_say(sequence: Sequence, usual: float) -> float:
    if sequence.pin is not None:
        return 0.0
    return max(min(usual, sequence.max_new_tokens) - len(sequence.output), 0.0)


def _at(rate: float, tokens: float) -> float:
    """Seconds for so many tokens; 0 while the rate is not known."""
    return tokens / rate if rate else 0.0
