"""Whether a worker takes a request up: pure decisions, each with its number in the message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..prompts.prompting import PromptError
from ..protocol import GenerateRequest
from .backlog import Backlog

# So many requests may wait whatever they weigh: an agent, its sub-agents and their titles come together.
ALWAYS_QUEUED = 4


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of one worker; 0 is no limit beside the context.

    `queue_wait_s` is for how long, by the measured rate, the prompts in the queue may keep the engine busy.
    """

    max_prompt_tokens: int = 0
    max_output_tokens: int = 0
    queue_wait_s: float = 0.0

    def limited(self, request: GenerateRequest) -> GenerateRequest:
        """The request with an output limit that is allowed. Raises PromptError when it asks for more."""
        most, asked = self.max_output_tokens, request.max_new_tokens
        if not most or (asked is not None and asked <= most):
            return request
        if asked is None:
            return replace(request, max_new_tokens=most)
        raise PromptError(
            400,
            "invalid_value",
            f"{asked:,} output tokens are more than this server gives, {most:,} (max_output_tokens)",
            "max_tokens",
        )

    def check_prompt(self, tokens: int, param: str = "messages") -> None:
        """Raises PromptError when a prompt of so many tokens, in this field of the request, is too long."""
        most = self.max_prompt_tokens
        if most and tokens > most:
            raise PromptError(
                400,
                "context_length_exceeded",
                f"the prompt has {tokens} tokens, the limit is {most} (max_prompt_tokens)",
                param,
                tokens,
                limit=most,
            )

    def check_queue(self, backlog: Backlog, prefill_rate: float, tokens: int = 0) -> None:
        """Raises PromptError, with the seconds until there is room, when `tokens` more are too many for the queue.

        Without a measured rate there is no limit.
        """
        room = self.queue_wait_s * prefill_rate
        if not room or backlog.queued < ALWAYS_QUEUED or backlog.to_compute + tokens <= room:
            return
        over = backlog.to_compute + tokens - room
        raise PromptError(
            429,
            "queue_full",
            f"the prompts of {backlog.queued} queued requests take {backlog.to_compute / prefill_rate:.0f} s already "
            f"(queue_wait {self.queue_wait_s:g} s)",
            retry_after_s=min(over / prefill_rate, backlog.seconds),
        )
