"""One structured record for each request, and the line for people that says the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...engine.protocol import RequestProgress, Timings
from ..snapshot import RequestRecord, RunningRequest
from .ledger import Entry
from .request_state import RequestLife, RequestState

_NO_MODEL = "no model"
_LONGEST = 200


def record_of(entry: Entry) -> RequestRecord:
    """What is known of a request now. Where its worker told times, they are those, else the daemon's own."""
    generation, life, caller = entry.generation, entry.generation.life, entry.caller
    accepted, started, finished = generation.accepted, generation.started, generation.finished
    times = finished.timings if finished else None
    prompt = accepted.prompt_tokens if accepted else None
    cached = started.cached_tokens if started else None
    decode_s = times.decode_s if times else _decode_s(entry)
    return RequestRecord(
        number=entry.number,
        id=entry.id,
        request_id=caller.request_id,
        route=caller.route,
        client=caller.client,
        model=_short(entry.model),
        device=entry.device,
        stream=entry.stream,
        state=life.state.value,
        terminal_state=life.state.value if life.ended else None,
        status=entry.status,
        finish_reason=finished.finish_reason if finished else None,
        reason=entry.reason,
        error=None if entry.error is None else _short(entry.error),
        session_id=_session(entry),
        enqueued_at=round(entry.received_at, 6),
        started_at=_at(entry, RequestState.PREFILL),
        first_token_at=_at(entry, RequestState.DECODE),
        finished_at=_at(entry, life.state) if life.ended else None,
        queue_position=accepted.queue_position if accepted else None,
        queued_ms=_ms(_queued_s(life, times)),
        tokenize_ms=_ms(accepted.tokenize_s if accepted else None),
        load_ms=_ms(entry.load_s),
        prefill_ms=_ms(times.prefill_s if times else life.between(RequestState.PREFILL, RequestState.DECODE)),
        first_delta_ms=_ms(life.between(RequestState.ENQUEUED, RequestState.DECODE)),
        decode_ms=_ms(decode_s),
        decode_tok_per_s=_rate(generation.tokens, decode_s),
        prefix_action=started.prefix_action if started else None,
        cache_miss_reason=started.cache_miss_reason if started else None,
        prompt_tokens=prompt,
        cached_tokens=cached,
        new_prefill_tokens=None if prompt is None or cached is None else prompt - cached,
        completion_tokens=generation.tokens,
        draft_tokens=accepted.draft_tokens if accepted else None,
        spec_attempts=finished.drafts.attempts if finished else None,
        spec_accepts=finished.drafts.accepted if finished else None,
        accept_length=round(finished.drafts.accept_length, 3) if finished else None,
        drafts=finished.drafts if finished else None,
    )


def running(entry: Entry) -> RunningRequest:
    """A request that has not ended, with what its worker last told of it."""
    record, progress = record_of(entry), _progress(entry)
    if progress is None:
        position = (record.queue_position or 0) + 1 if record.state == RequestState.QUEUED.value else 0
        return RunningRequest(record, position, 0, record.prompt_tokens or 0, record.completion_tokens)
    return RunningRequest(
        record,
        progress.position,
        progress.tokens_done,
        progress.tokens_total,
        max(progress.tokens_generated, record.completion_tokens),
    )


def progress_object(request: RunningRequest) -> dict[str, Any]:
    """`agentserve.progress` of a life sign: the phase, the place in the queue, and tokens of the prompt."""
    return {
        "phase": request.record.state,
        "position": request.position,
        "tokens_done": request.tokens_done,
        "tokens_total": request.tokens_total,
    }


def human_line(record: RequestRecord) -> str:
    """The record as one line of the log."""
    return f"{record.request_id} {record.terminal_state}: {', '.join(_parts(record))}"


def _parts(record: RequestRecord) -> Iterator[str]:
    yield record.model or _NO_MODEL
    if record.client:
        yield record.client
    yield f"{(record.finished_at or record.enqueued_at) - record.enqueued_at:.3f} s"
    if record.reason:
        yield record.reason
    if record.prefix_action:
        yield f"{record.prefix_action} {record.cached_tokens} cached"
    if record.prompt_tokens is not None:
        yield f"{record.prompt_tokens} in, {record.completion_tokens} out"
    if record.finish_reason:
        yield record.finish_reason
    for name, spent in (
        ("queue", record.queued_ms),
        ("prefill", record.prefill_ms),
        ("decode", record.decode_ms),
    ):
        if spent is not None:
            yield f"{name} {spent / 1000:.3f} s"
    if record.decode_tok_per_s is not None:
        yield f"{record.decode_tok_per_s:.1f} tokens/s"


def _session(entry: Entry) -> str | None:
    """The conversation, as far as it is known: the worker's word, else the client's wish."""
    started = entry.generation.started
    session = (started.session_id if started else None) or entry.session
    return None if session is None else _short(session)


def _short(text: str) -> str:
    """A client's text as far as it is fit for one line of a log and for a terminal."""
    return "".join(character for character in text[:_LONGEST] if character.isprintable())


def _progress(entry: Entry) -> RequestProgress | None:
    stats = entry.worker.facts.stats if entry.worker else None
    told = stats.progress if stats else ()
    return next((one for one in told if one.request_id == entry.id), None)


def _at(entry: Entry, state: RequestState) -> float | None:
    """Unix seconds, by the wall clock at the arrival and the monotonic clock from there on."""
    passed = entry.generation.life.between(RequestState.ENQUEUED, state)
    return None if passed is None else round(entry.received_at + passed, 6)


def _queued_s(life: RequestLife, times: Timings | None) -> float | None:
    """The wait until an engine took the request up. A worker knows no more of it than began in its own queue; what a
    worker before it had is in the daemon's time alone."""
    waited = life.between(RequestState.QUEUED, RequestState.PREFILL)
    return max(waited or 0.0, times.queued_s) if times else waited


def _decode_s(entry: Entry) -> float | None:
    """How long an answer was on its way that broke off; None for one that still is, or never was."""
    life = entry.generation.life
    return life.between(RequestState.DECODE, life.state) if life.ended else None


def _rate(tokens: int, decode_s: float | None) -> float | None:
    """Tokens per second; the first one comes out of the prefill."""
    return round((tokens - 1) / decode_s, 2) if decode_s and tokens > 1 else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
