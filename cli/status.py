"""status: what the daemon is doing, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from ..daemon.client import DaemonClient
from ..daemon.paths import resolve_paths
from ..daemon.registry import size_text
from ..daemon.snapshot import ModelInfo, SelfTest, StatusSnapshot, WorkerSnapshot
from . import output

Facts = Iterator[tuple[str, str]]


def status(
    json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
) -> None:
    """Show version, uptime, models, memory and requests of the running daemon."""
    client = DaemonClient.discover(resolve_paths())
    snapshot = client.status()
    if json:
        output.json(snapshot)
    else:
        output.facts(describe(snapshot, client.base_url))


def describe(snapshot: StatusSnapshot, base_url: str) -> Facts:
    """Label and text of each line."""
    yield "agentserve", f"{snapshot.version}, pid {snapshot.pid}, up {duration_text(snapshot.uptime_s)}"
    yield "address", base_url
    state = "draining" if snapshot.draining else snapshot.startup.phase
    yield "state", f"{state}: {snapshot.startup.detail}" if snapshot.startup.detail else state
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
    for worker in snapshot.workers:
        yield from _describe_worker(worker)


def _describe_worker(worker: WorkerSnapshot) -> Facts:
    stage = f" ({worker.load_stage})" if worker.load_stage and worker.state == "starting" else ""
    yield "model", f"{worker.name}: {worker.state}{stage}"
    if worker.error:
        yield "", f"last error: {worker.error}"
    if worker.model is not None:
        yield "", _model_text(worker.model)
        graph = "graph from the cache" if worker.compile_cache_hit else "graph built"
        yield "", f"loaded in {worker.load_s:.1f} s, {graph}"
        kv_size = size_text(worker.model.kv_budget_bytes)
        held = f"{worker.blocks_used} used, {worker.blocks_cached} remembered"
        yield "", f"KV cache of {worker.blocks_total} blocks ({kv_size}): {held}"
        for note in worker.model.notes:
            yield "", note
    if worker.self_test is not None:
        yield "", f"self-test {self_test_text(worker.self_test)}"
    if worker.tokens_reused + worker.tokens_prefilled:
        computed = f"{worker.tokens_prefilled} prompt tokens computed"
        yield "", f"prefix memory: {computed}, {worker.tokens_reused} reused ({worker.hit_rate:.0%})"
    if worker.tokens_generated:
        prefill, decode = worker.prefill_tokens_per_s, worker.decode_tokens_per_s
        yield "", f"prefill {prefill:.0f} tokens/s, decode {decode:.1f} tokens/s"


def _model_text(model: ModelInfo) -> str:
    return (
        f"{model.architecture} on {model.device}, {model.parameters / 1e6:.1f} M parameters, "
        f"context {model.context_length}, weights {size_text(model.weight_bytes)}"
    )


def self_test_text(test: SelfTest) -> str:
    """`passed`, or which of the comparisons failed."""
    parts = {"rows": test.rows_agree, "replay": test.replay_agrees, "rollback": test.rollback_agrees}
    failed = [name for name, agrees in parts.items() if not agrees]
    outcome = f"failed: {', '.join(failed)} differ" if failed else "passed"
    return f"{outcome} in {test.seconds:.2f} s"


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
