"""What an answer says of itself: OpenAI's `usage`, and the `agentserve` block that every dialect has."""

from __future__ import annotations

from typing import Any

from ...engine.protocol import DraftStats, Finished, PrefixPinned
from ..generation.generation import Generation


def usage(finished: Finished) -> dict[str, Any]:
    """Token counts in OpenAI's shape; prompt_tokens counts cached ones too."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def record(generation: Generation) -> dict[str, Any]:
    """The `agentserve` block: what was reused and where the time went, in milliseconds."""
    finished, started, accepted = generation.finished, generation.started, generation.accepted
    assert finished is not None
    timings = finished.timings
    block: dict[str, Any] = {
        "cached_tokens": finished.cached_tokens,
        "new_prefill_tokens": finished.prompt_tokens - finished.cached_tokens,
        "queued_ms": _milliseconds(timings.queued_s),
        "tokenize_ms": _milliseconds(timings.tokenize_s),
        "prefill_ms": _milliseconds(timings.prefill_s),
        "first_delta_ms": _milliseconds(timings.first_token_s),
        "decode_ms": _milliseconds(timings.decode_s),
    }
    # The first token comes out of the prefill.
    if timings.decode_s > 0 and finished.completion_tokens > 1:
        block["decode_tok_per_s"] = round((finished.completion_tokens - 1) / timings.decode_s, 2)
    if started is not None:
        known = {
            "prefix_action": started.prefix_action,
            "session_id": started.session_id,
            "cache_miss_reason": started.cache_miss_reason,
            "first_difference": started.first_difference,
        }
        block |= {name: value for name, value in known.items() if value is not None}
    if accepted is not None and accepted.clipped:
        block["max_output_tokens"] = accepted.max_new_tokens
    if started is not None and started.difference is not None:
        block["difference"] = started.difference
    if finished.stop_string is not None:
        block["stop_string"] = finished.stop_string
    if finished.pin is not None:
        block |= _pin_fields(finished.pin)
    if accepted is not None:
        block |= draft_fields(finished.drafts, accepted.draft_tokens)
    return block


def draft_fields(drafts: DraftStats, limit: int) -> dict[str, Any]:
    """What became of a request's drafts; `draft_tokens` is the limit that was in force."""
    fields: dict[str, Any] = {
        "draft_tokens": limit,
        "spec_attempts": drafts.attempts,
        "spec_accepts": drafts.accepted,
        "spec_full": drafts.full,
        "accept_length": round(drafts.accept_length, 3),
    }
    if drafts.attempts:
        fields["speculation"] = {
            "drafted": drafts.drafted,
            "acceptance_rate": round(drafts.acceptance_rate, 4),
            "mean_accepted": round(drafts.mean_accepted, 3),
            "tokens_per_step": round(drafts.tokens_per_step, 3),
            "draft_length": round(drafts.draft_length, 3),
            "draft_ms": _milliseconds(drafts.seconds),
            "drafters": drafts.drafters,
            "drafted_at": drafts.drafted_at,
            "accepted_at": drafts.accepted_at,
        }
    return fields


def _pin_fields(pin: PrefixPinned) -> dict[str, Any]:
    if pin.rejected is not None:
        return {"pin_rejected": pin.rejected}
    if pin.skipped is not None:
        return {"pin_skipped": pin.skipped}
    return {"pinned_tokens": pin.tokens, "pin_name": pin.name}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
