"""What speculation tells about itself; `protocol` has it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftModelFile:
    """A model that is to draft for another: its name, its file (None is the built-in reference model), and the SHA-256
    of that ("" makes the engine compute it)."""

    name: str
    path: str | None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class DraftModelInfo:
    """A loaded draft model: what it is and what it costs, in bytes."""

    name: str
    parameters: int
    weight_bytes: int
    kv_budget_bytes: int
    context_length: int


@dataclass(frozen=True, slots=True)
class DrafterCounts:
    """One drafter's work: steps with a draft of it, tokens drafted and accepted, drafts accepted to the last token."""

    drafter: str
    attempts: int
    drafted: int
    accepted: int
    full: int


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Speculation in one request, or in all since the worker started.

    `steps` are the decode steps, with and without a draft, and `tokens` what they gave. `emitted` is what the steps
    with a draft gave: the accepted tokens and the model's own one behind them. `accepted_at[i]` of `drafted_at[i]`
    tokens at place i of a draft were accepted. `seconds` were spent looking for drafts, in all steps.
    """

    steps: int = 0
    tokens: int = 0
    emitted: int = 0
    seconds: float = 0.0
    drafters: tuple[DrafterCounts, ...] = ()
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    @property
    def attempts(self) -> int:
        return sum(counts.attempts for counts in self.drafters)

    @property
    def drafted(self) -> int:
        return sum(counts.drafted for counts in self.drafters)

    @property
    def accepted(self) -> int:
        return sum(counts.accepted for counts in self.drafters)

    @property
    def full(self) -> int:
        return sum(counts.full for counts in self.drafters)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens for each drafted one."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def accept_length(self) -> float:
        """Tokens that a step with a draft gave."""
        return self.emitted / self.attempts if self.attempts else 0.0

    @property
    def mean_accepted(self) -> float:
        """Drafted tokens accepted in a step with a draft."""
        return self.accepted / self.attempts if self.attempts else 0.0

    @property
    def draft_length(self) -> float:
        """Tokens of a draft, on average: what the controller made of the limit."""
        return self.drafted / self.attempts if self.attempts else 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0
