"""From sampled tokens to the text that a client gets, and to the end of its reply.

The acceptance of tokens is here and nowhere else, whoever proposed them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

from ..protocol import Delta, DraftStats, Finished, FinishReason, LogprobsDelta, TokenLogprob
from ..runners.runner import Logits
from ..sequence import Sequence
from ..tool_formats.events import Event
from .reader import deltas


class Ending(NamedTuple):
    """Why a reply is over; `stop_string` is the one that matched."""

    reason: FinishReason
    stop_string: str | None = None


CANCELLED = Ending("cancelled")


class Run(NamedTuple):
    """How many tokens a step added to a reply, at least one, and why it is over, if it is."""

    added: int
    ending: Ending | None


class Replies:
    """The replies of an engine. `stop_tokens` end a turn, `emit` takes what became certain."""

    def __init__(self, stop_tokens: frozenset[int], emit: Callable[[Delta | LogprobsDelta], None]) -> None:
        self._stop_tokens = stop_tokens
        self._emit = emit

    def accept(self, sequence: Sequence, draft: Items[int], logits: Logits) -> Run:
        """Adds what `logits` [len(draft) + 1, vocab_size] give, up to the first token that the draft did not foresee.

        Row i holds for what stands behind the i-th drafted token, so only if the tokens up to there are what the
        model chose. Each choice is made as if nothing had been drafted, from the same logits and with the random
        number of its position: a draft changes how many tokens a step gives, and no token. The end of the reply
        and a cancel cut the run.
        """
        if sequence.stamps.first_token is None:
            sequence.stamps.first_token = time.monotonic()
        count, events, ending = 0, list[Event](), None
        for row, foreseen in zip(logits, (*draft, None), strict=True):
            token = sequence.sampler.sample(row, sequence.known)
            if sequence.logprobs is not None and token not in self._stop_tokens:
                sequence.logprobs.push(token, row)
            certain, ending = self._add(sequence, token)
            count, events = count + 1, events + certain
            if ending is not None or token != foreseen or sequence.cancelled is not None:
                break
        self._send(sequence, events)
        return Run(count, ending)

    def _add(self, sequence: Sequence, token: int) -> tuple[list[Event], Ending | None]:
        """A token becomes part of the reply; what it makes certain, and the ending that it is."""
        sequence.output.append(token)
        sequence.unsent_tokens += 1
        sequence.sampler.observe(token)
        if token in self._stop_tokens:
            return [], Ending("stop")
        read = sequence.text.push(token)
        if read.stopped_by is not None or read.is_enough:
            return read.events, Ending("stop", read.stopped_by)
        if sequence.sampler.is_complete:
            return read.events, Ending("stop")
        return read.events, Ending("length") if len(sequence.output) == sequence.max_new_tokens else None

    def close(self, sequence: Sequence, ending: Ending) -> Ending:
        """Sends the text that was held back. It may complete a stop string, which then is why the reply ended.

        A cancelled reply stays cancelled: nothing but its reader decided that it ends here.
        """
        sequence.stamps.finished = time.monotonic()
        if ending.stop_string is not None:
            return ending
        rest = sequence.text.finish()
        if sequence.logprobs is not None:
            self._send_logprobs(sequence, sequence.logprobs.finish())
        self._send(sequence, rest.events)
        if rest.stopped_by is None or ending.reason == "cancelled":
            return ending
        return Ending("stop", rest.stopped_by)

    def _send(self, sequence: Sequence, events: Items[Event]) -> None:
        if sequence.logprobs is not None:
            self._send_logprobs(sequence, sequence.logprobs.take())
        for delta in deltas(sequence.request_id, events, sequence.unsent_tokens):
            self._emit(delta)
            sequence.unsent_tokens = 0

    def _send_logprobs(self, sequence: Sequence, tokens: tuple[TokenLogprob, ...]) -> None:
        if tokens:
            self._emit(LogprobsDelta(sequence.request_id, tokens))


def finished(sequence: Sequence, ending: Ending) -> Finished:
    """The last event of a request that ended this way."""
    return Finished(
        request_id=sequence.request_id,
        finish_reason="tool_calls" if ending.reason == "stop" and sequence.text.calls else ending.reason,
        prompt_tokens=len(sequence.prompt),
        cached_tokens=sequence.cached_tokens,
        completion_tokens=len(sequence.output),
        timings=sequence.stamps.timings(),
        stop_string=ending.stop_string,
        cancel_reason=sequence.cancelled if ending.reason == "cancelled" else None,
        pin=sequence.pinned,
        drafts=sequence.drafting.counter.stats() if sequence.drafting else DraftStats(),
    )
