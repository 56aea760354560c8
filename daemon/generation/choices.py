"""Several answers to one request: `n` choices for each of its prompts, and what the books make of them.

Each choice is a request of its own to the worker, sent together with the others. The engine computes what their
prompts have in common once: the choices wait for the first one's prompt and then take over its blocks. After that
they share the turns of their conversation, so that their streams grow side by side and others wait as for one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from ...engine.protocol import (
    Accepted,
    Delta,
    Finished,
    GenerateRequest,
    LogprobsDelta,
    RequestEvent,
    Started,
    Timings,
)
from ..records.draft_sums import total_drafts
from ..workers.channel import EventChannel
from ..workers.supervisor import Supervisor
from .generation import Generation

MOST_CHOICES = 32
"""Answers that one request may ask for, to all of its prompts together."""
_SEEDS = 1 << 64


class Piece(NamedTuple):
    """What a choice, named by its place in the answer, has more of."""

    choice: int
    deltas: list[Delta]


def fan_out(prompts: Sequence[GenerateRequest], n: int) -> tuple[GenerateRequest, ...]:
    """The requests of all choices: `n` for the first prompt, then for the second, and so on.

    The first is the request itself. The others have ids and seeds of their own, choice k of a prompt the seed that was
    asked for plus k, and no pin. They name the session, whose turns on the engine they share; it goes on with the first.
    """
    if len(prompts) * n == 1:
        return tuple(prompts)
    places = [(prompt, choice) for prompt in prompts for choice in range(n)]
    return tuple(_choice(prompt, index, choice) for index, (prompt, choice) in enumerate(places))


def _choice(request: GenerateRequest, index: int, choice: int) -> GenerateRequest:
    if index == 0:
        return request
    sampling = request.sampling
    if sampling.seed is not None and choice:
        sampling = replace(sampling, seed=(sampling.seed + choice) % _SEEDS)
    return replace(
        request,
        request_id=f"{request.request_id}.{index}",
        choice=choice,
        sampling=sampling,
        pin=None,
        explain=False,
    )


@dataclass(slots=True)
class Choices:
    """Folds the events of all choices. `whole` is the request as the books see it, `parts` are the choices by index;
    of `n` choices each the prompts count once."""

    whole: Generation
    requests: tuple[GenerateRequest, ...]
    n: int = 1
    parts: list[Generation] = field(init=False)
    _index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        is_one = len(self.requests) == 1
        self.parts = [self.whole] if is_one else [Generation() for _ in self.requests]
        self._index = {request.request_id: index for index, request in enumerate(self.requests)}

    @property
    def are_finished(self) -> bool:
        return all(part.finished is not None for part in self.parts)

    @contextmanager
    def open(self, worker: Supervisor) -> Iterator[EventChannel]:
        """Sends all requests and gives the channel of their events. Leaving the block cancels what has not ended."""
        channel = EventChannel()
        with ExitStack() as stack:
            for request in self.requests:
                stack.enter_context(worker.open(request, channel))
            yield channel

    def take(self, events: Iterable[RequestEvent]) -> list[Piece]:
        """Takes note of events and returns what they add to which choice. Raises as `Generation.take` does: what
        ends one choice with an error ends the request."""
        if len(self.parts) == 1:
            deltas = self.whole.take(events)
            return [Piece(0, deltas)] if deltas else []
        runs = groupby(events, lambda event: self._index[event.request_id])
        return [self._take_run(index, list(run)) for index, run in runs]

    async def until_accepted(self, channel: EventChannel) -> list[Piece]:
        """Reads until all choices are accepted and returns what came along. Raises as `take` does."""
        pieces: list[Piece] = []
        while not all(part.accepted for part in self.parts):
            pieces += self.take(await channel.receive())
        return pieces

    async def until_finished(self, channel: EventChannel) -> list[Piece]:
        """Reads to the end and returns the answers from here on. Raises as `take` does."""
        pieces: list[Piece] = []
        while not self.are_finished:
            pieces += self.take(await channel.receive())
        return pieces

    def _take_run(self, index: int, events: list[RequestEvent]) -> Piece:
        deltas = self.parts[index].take(events)
        self.whole.take(event for event in events if self._is_news(event))
        if self.whole.finished is None and self.are_finished:
            self._finish(self._finished())
        return Piece(index, deltas)

    def _finish(self, end: Finished) -> None:
        """The books get the end of the whole request, and the counts of all of its prompts."""
        accepted, started = self.whole.accepted, self.whole.started
        assert accepted is not None
        assert started is not None
        self.whole.accepted = replace(accepted, prompt_tokens=end.prompt_tokens)
        self.whole.started = replace(started, cached_tokens=end.cached_tokens)
        self.whole.take([end])

    def _is_news(self, event: RequestEvent) -> bool:
        """Whether an event of one choice says something of the whole request."""
        match event:
            case Accepted():
                return self.whole.accepted is None
            case Started():
                return self.whole.started is None
            case Finished() | LogprobsDelta():
                return False
            case _:
                return True

    def _finished(self) -> Finished:
        """The end of the whole request; its finish reason is that of the first choice."""
        ends = [part.finished for part in self.parts if part.finished is not None]
        prompts = ends[:: self.n]
        return replace(
            ends[0],
            request_id=self.requests[0].request_id,
            prompt_tokens=sum(end.prompt_tokens for end in prompts),
            cached_tokens=sum(end.cached_tokens for end in prompts),
            completion_tokens=sum(end.completion_tokens for end in ends),
            timings=_timings([end.timings for end in ends]),
            drafts=total_drafts([end.drafts for end in ends]),
            stop_string=None,
        )


def _timings(times: Sequence[Timings]) -> Timings:
    """Those of the first choice, but that decoding lasts from the first token of any to the last one of all."""
    begin = min(one.first_token_s for one in times)
    end = max(one.first_token_s + one.decode_s for one in times)
    return replace(times[0], first_token_s=begin, decode_s=end - begin)
