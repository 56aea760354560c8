"""status: what the daemon is doing, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from ..daemon.client import DaemonClient
from ..daemon.paths import resolve_paths
from ..daemon.snapshot import (
    DraftModelInfo,
    DraftStats,
    Limits,
    ModelInfo,
    RequestRecord,
    RunningRequest,
    SelfTest,
    StatusSnapshot,
    TierBytes,
    WorkerSnapshot,
)
from ..daemon.store.registry import size_text
from . import output

Facts = Iterator[tuple[str, str]]
_RECENT = 5


def status(
    json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show every change until Ctrl-C.")] = False,
) -> None:
    """Show version, uptime, models, memory and requests of the running daemon."""
    client = DaemonClient.discover(resolve_paths())
    if watch:
        _watch(client, json=json)
        return
    snapshot = client.status()
    if json:
        output.json(snapshot)
    else:
        output.facts(describe(snapshot, client.base_url))


def _watch(client: DaemonClient, *, json: bool) -> None:
    for snapshot in client.snapshots():
        if json:
            output.json_line(snapshot)
        else:
            output.screen(output.fact_lines((*describe(snapshot, client.base_url), *_running(snapshot))))


def _running(snapshot: StatusSnapshot) -> Facts:
    for one in snapshot.running:
        yield "running", request_text(one)
    for record in snapshot.recent[:_RECENT]:
        yield "ended", f"{record.request_id}  {record.model}  {outcome_text(record)}"


def describe(snapshot: StatusSnapshot, base_url: str) -> Facts:
    """Label and text of each line."""
    yield "agentserve", f"{snapshot.version}, pid {snapshot.pid}, up {duration_text(snapshot.uptime_s)}"
    yield "address", base_url
    yield "state", _state_text(snapshot)
    yield (
        "memory",
        f"daemon {size_text(snapshot.rss_bytes)}"
        + "".join(
            f", {worker.name} {size_text(worker.rss_bytes)}"
            for worker in snapshot.workers
            if worker.rss_bytes
        ),
    )
    counts = snapshot.requests
    running = f"{counts.active} active, {counts.queued} queued"
    ended = (
        f"{counts.done} done, {counts.cancelled} cancelled, {counts.error} failed, {counts.rejected} rejected"
    )
    yield "requests", f"{running}, {ended}"
    prompt = f"{counts.prompt_tokens} prompt ({counts.cached_tokens} cached)"
    yield "tokens", f"{prompt}, {counts.completion_tokens} generated"
    if snapshot.limits is not None:
        yield "limits", limits_text(snapshot.limits)
    for worker in snapshot.workers:
        yield from _describe_worker(worker)


def _state_text(snapshot: StatusSnapshot) -> str:
    if snapshot.draining:
        return "draining"
    failed = [worker.name for worker in snapshot.workers if worker.state == "failed"]
    if failed and snapshot.startup.phase == "ready":
        return f"without {', '.join(failed)}; the next request loads it again"
    detail = snapshot.startup.detail
    return f"{snapshot.startup.phase}: {detail}" if detail else snapshot.startup.phase


def _describe_worker(worker: WorkerSnapshot) -> Facts:
    stage = f" ({worker.load_stage})" if worker.load_stage and worker.state == "starting" else ""
    yield "model", f"{worker.name}: {worker.state}{stage}"
    if worker.error:
        yield "", f"last error: {worker.error}"
    # What a process said of itself is gone with it.
    if worker.state in ("ready", "stopping"):
        yield from _describe_loaded(worker)


def _describe_loaded(worker: WorkerSnapshot) -> Facts:
    if worker.model is not None:
        yield "", _model_text(worker.model)
        graph = "graph from the cache" if worker.compile_cache_hit else "graph built"
        yield "", f"loaded in {worker.load_s:.1f} s, {graph}"
        if not worker.model.dimensions:
            yield from _cache_texts(worker, worker.model)
        if formats := _formats_text(worker.model):
            yield "", formats
        for note in worker.model.notes:
            yield "", note
    if worker.self_test is not None:
        yield "", f"self-test {self_test_text(worker.self_test)}"
    if worker.tokens_reused + worker.tokens_prefilled:
        computed = f"{worker.tokens_prefilled} prompt tokens computed"
        memory = "vectors" if worker.model is not None and worker.model.dimensions else "prefix memory"
        yield "", f"{memory}: {computed}, {worker.tokens_reused} reused ({worker.hit_rate:.0%})"
    if speeds := _speeds_text(worker):
        yield "", speeds
    if worker.model is not None and not worker.model.dimensions:
        yield "", speculation_text(worker.model, worker.drafts)
        if worker.model.draft_model is not None:
            yield "", draft_model_text(worker.model.draft_model)


def _speeds_text(worker: WorkerSnapshot) -> str:
    """What was measured so far."""
    prefill, decode = worker.prefill_tokens_per_s, worker.decode_tokens_per_s
    measured = ((f"prefill {prefill:.0f} tokens/s", prefill), (f"decode {decode:.1f} tokens/s", decode))
    return ", ".join(text for text, speed in measured if speed)


def _cache_texts(worker: WorkerSnapshot, model: ModelInfo) -> Facts:
    held = f"{worker.blocks_used} used, {worker.blocks_cached} remembered"
    yield "", f"KV cache of {worker.blocks_total} blocks ({size_text(model.kv_budget_bytes)}): {held}"
    yield "", f"prefixes: {tiers_text(worker.tiers)}"


def speculation_text(model: ModelInfo, drafts: DraftStats) -> str:
    """What speculation may do and what it came to, by drafter."""
    if not model.speculative:
        return "speculation off"
    if not drafts.attempts:
        return f"speculation: up to {model.draft_tokens} tokens a step"
    shares = ", ".join(
        f"{one.drafter} {one.accepted / one.drafted:.0%} of {one.drafted}" for one in drafts.drafters
    )
    return f"speculation: {drafts.tokens_per_step:.2f} tokens a step, accepted {shares}"


def draft_model_text(draft: DraftModelInfo) -> str:
    """What drafts, and what it takes."""
    kv = f"KV cache {size_text(draft.kv_budget_bytes)}"
    return f"{draft.name} drafts: {draft.parameters / 1e6:.1f} M parameters, weights {size_text(draft.weight_bytes)}, {kv}"


def _model_text(model: ModelInfo) -> str:
    return (
        f"{model.architecture} on {model.device}, {model.parameters / 1e6:.1f} M parameters, "
        f"context {model.context_length}, weights {size_text(model.weight_bytes)}, {_kind_text(model)}"
    )


def _formats_text(model: ModelInfo) -> str:
    """How the model writes what is not text; nothing for one that writes text alone."""
    formats = {"tool calls": model.tool_format, "reasoning": model.reasoning_format}
    return ", ".join(f"{what} as {name}" for what, name in formats.items() if name)


def _kind_text(model: ModelInfo) -> str:
    if model.dimensions:
        return f"embeddings of {model.dimensions} dimensions"
    return f"exact mode {'on' if model.exact else 'off'}"


def limits_text(limits: Limits) -> str:
    """What one model takes on, without what is not limited."""
    parts = [f"{limits.max_queue_depth} queued"]
    if limits.queue_wait_s:
        parts.append(f"{limits.queue_wait_s:g} s of queued prompts")
    parts.append(f"{limits.max_active_sessions} conversations at a time")
    if limits.max_prompt_tokens:
        parts.append(f"{limits.max_prompt_tokens} prompt tokens")
    if limits.max_output_tokens:
        parts.append(f"{limits.max_output_tokens} output tokens")
    if limits.session_idle_ttl_s:
        parts.append(f"{limits.session_idle_ttl_s:g} s of an idle session")
    return ", ".join((*parts, f"bodies of {size_text(limits.max_body_bytes)}"))


def tiers_text(tiers: TierBytes) -> str:
    """What each tier of prefix memory takes of what it may; a tier without a budget is off."""
    places = (
        ("in memory", tiers.pool, tiers.pool_budget),
        ("pinned", tiers.pinned, tiers.pinned_budget),
        ("on disk", tiers.disk, tiers.disk_budget),
    )
    return ", ".join(
        f"{size_text(used)} of {size_text(budget)} {place}" if budget else f"none {place}"
        for place, used, budget in places
    )


def self_test_text(test: SelfTest) -> str:
    """`passed`, or which of the comparisons failed."""
    parts = {"rows": test.rows_agree, "replay": test.replay_agrees, "rollback": test.rollback_agrees}
    failed = [name for name, agrees in parts.items() if not agrees]
    outcome = f"failed: {', '.join(failed)} differ" if failed else "passed"
    return f"{outcome} in {test.seconds:.2f} s"


def request_text(one: RunningRequest) -> str:
    """What a running request is at."""
    record = one.record
    at = {
        "queued": f"queued at {one.position}",
        "prefill": f"prompt {one.tokens_done}/{one.tokens_total}",
        "decode": f"{one.tokens_generated} tokens generated",
    }
    return f"{record.request_id}  {record.model}  {at.get(record.state, record.state)}"


def outcome_text(record: RequestRecord) -> str:
    """How a request ended: its terminal state, and the reason where there is one."""
    return f"{record.state} ({record.reason})" if record.reason else record.state


def ago_text(moment: float | None) -> str:
    """How long ago a unix time was; `never` for None."""
    return "never" if moment is None else f"{duration_text(max(0.0, time.time() - moment))} ago"


def duration_text(seconds: float) -> str:
    """For instance `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in units:
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
