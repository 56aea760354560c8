"""The state of one request inside the engine: what is known, what is computed, where it stands."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Literal

from .capsules.capsule import PinWish, PrefixPinJob
from .drafting.drafting import Drafting
from .messages.pins import PrefixPinned
from .prefix.conversations import Conversation
from .prefix.differences import Explainer
from .prefix.session import Session
from .prompts.transcripts import Origin
from .protocol import Accepted, CancelReason, RequestProgress, Timings
from .replies.logprobs import LogprobTrail
from .replies.reader import ReplyReader
from .replies.sampling import Sampler
from .scheduling.scheduler import Lane


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
    `turn_start`, `canonical` and `origin` are those of `prompting.Prompt`. Sequences of one `lane` run one after the other,
    but answers to one prompt side by side.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampler: Sampler
    text: ReplyReader
    stamps: Stamps
    namespace: str = ""
    session_id: str | None = None
    lane: Lane = None
    stable: int = 0
    turn_start: int = 0
    canonical: int | None = None
    origin: Origin | None = None
    session: Session | None = None
    conversation: Conversation | None = None
    output: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    unsent_tokens: int = 0
    # On the monotonic clock; None is never.
    deadline: float | None = None
    # Set by the intake thread, read by the engine thread at step boundaries; a reference, so never torn.
    cancelled: CancelReason | None = None
    # Set when the prompt is only to be computed and pinned, and nothing to be generated.
    pin: PinWish | None = None
    # Set until the beginning of the prompt, which the request wants to be pinned, is.
    prefix_pin: PrefixPinJob | None = None
    pinned: PrefixPinned | None = None
    # Told once the pin's room is booked.
    admission: Accepted | None = None
    explain: Explainer | None = None
    # At most this many tokens are drafted in a step.
    draft_limit: int = 0
    drafting: Drafting | None = None
    # Set when the client wants to know how likely each token was.
    logprobs: LogprobTrail | None = None
    # Further answers to a prompt that another sequence computes are numbered from 1 on.
    choice: int = 0

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def committed(self) -> int:
        return self.session.committed if self.session else 0

    @property
    def is_prefilling(self) -> bool:
        return not self.output

    @property
    def pin_end(self) -> int:
        """Where the prefix ends that is still to be pinned; 0 when none is."""
        return self.prefix_pin.tokens if self.prefix_pin else 0

    def computes_for(self, other: Sequence, block_tokens: int) -> bool:
        """Whether the block of the prompt that is computed next here is one that `other` needs too."""
        if self.session is None or not self.is_prefilling or self.namespace != other.namespace:
            return False
        end = (self.committed // block_tokens + 1) * block_tokens
        return self.prompt[:end] == other.prompt[:end]

    def progress(self, position: int) -> RequestProgress:
        """Where it stands, `position` being its place in the queue, or 0 once it has started."""
        working: Literal["prefill", "decode"] = "prefill" if self.is_prefilling else "decode"
        return RequestProgress(
            request_id=self.request_id,
            phase="queued" if position else working,
            position=position,
            tokens_done=min(self.committed, len(self.prompt)),
            tokens_total=len(self.prompt),
            tokens_generated=len(self.output),
        )

    def uncomputed(self, most: int) -> Items[int]:
        """At most `most` of the known tokens that are not computed yet, from the first on."""
        start, end = self.committed, min(self.committed + most, self.known)
        if end <= len(self.prompt):
            return self.prompt[start:end]
        split = len(self.prompt)
        return (*self.prompt[start:split], *self.output[max(start - split, 0) : end - split])
