"""The state of one request inside the engine: what is known, what is computed, where it stands."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from .capsule import PinWish
from .conversations import Conversation
from .protocol import CancelReason, Timings
from .sampling import Sampler
from .session import Session
from .text_stream import TextStream
from .transcripts import Origin


@dataclass(slots=True)
class Stamps:
    """Monotonic times of a request, in seconds; None until it happened."""

    arrived: float
    tokenize_s: float = 0.0
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None

    def timings(self) -> Timings:
        """Durations; a phase that was not reached counts 0."""
        end = self.finished if self.finished is not None else self.arrived
        started = self.started if self.started is not None else end
        first = self.first_token if self.first_token is not None else end
        return Timings(
            queued_s=started - self.arrived,
            tokenize_s=self.tokenize_s,
            prefill_s=first - started,
            first_token_s=first - self.arrived,
            decode_s=end - first,
        )


@dataclass(slots=True)
class Sequence:
    """A request from its arrival to its end. It dies with the request; the session may outlive it.

    The tokens known are `prompt + output`. Those before `session.committed` are computed, the rest is what the
    next steps have to feed: a part of the prompt, or the token sampled last. `max_new_tokens` is at least 1. `stable`,
    `turn_start`, `canonical` and `origin` are those of `prompting.Prompt`.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampler: Sampler
    text: TextStream
    stamps: Stamps
    namespace: str = ""
    session_id: str | None = None
    stable: int = 0
    turn_start: int = 0
    canonical: int | None = None
    origin: Origin | None = None
    session: Session | None = None
    conversation: Conversation | None = None
    output: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    unsent_tokens: int = 0
    # Set by the intake thread, read by the engine thread at step boundaries; a reference, so never torn.
    cancelled: CancelReason | None = None
    # Set when the prompt is only to be computed and pinned, and nothing to be generated.
    pin: PinWish | None = None

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def committed(self) -> int:
        return self.session.committed if self.session else 0

    @property
    def is_prefilling(self) -> bool:
        return not self.output

    def uncomputed(self, most: int) -> Items[int]:
        """At most `most` of the known tokens that are not computed yet, from the first on."""
        start, end = self.committed, min(self.committed + most, self.known)
        if end <= len(self.prompt):
            return self.prompt[start:end]
        split = len(self.prompt)
        return (*self.prompt[start:split], *self.output[max(start - split, 0) : end - split])
