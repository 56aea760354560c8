"""The gauges of `/metrics`: what a snapshot says, as Prometheus families. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from ..snapshot import StatusSnapshot, WorkerSnapshot

_DEVICES = frozenset({"npu", "gpu", "cpu", "auto", "mock"})


def device_label(device: str | None) -> str:
    """The class of a device: `GPU.1` is gpu, one that is not known is unknown."""
    name = re.sub(r"\.\d+$", "", (device or "").lower())
    return name if name in _DEVICES else "unknown"


def gauges(snapshot: StatusSnapshot) -> Iterator[Metric]:
    """All gauges of the daemon and its workers at the time of `snapshot`."""
    yield _plain("queue_depth", "Generation requests that no engine has taken up", snapshot.requests.queued)
    yield _plain("daemon_resident_bytes", "Resident memory of the daemon", snapshot.rss_bytes)
    yield _plain("uptime_seconds", "Since the daemon started", snapshot.uptime_s)
    yield _in_progress(snapshot)
    yield from _of_workers(snapshot.workers)


def _plain(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"agentserve_{name}", text, value=value)


def _in_progress(snapshot: StatusSnapshot) -> Metric:
    family = GaugeMetricFamily(
        "agentserve_requests_in_progress", "Generation requests that have not ended", labels=["endpoint"]
    )
    for endpoint, count in Counter(one.record.route for one in snapshot.running).items():
        family.add_metric([endpoint], count)
    return family


def _of_workers(workers: Iterable[WorkerSnapshot]) -> Iterator[Metric]:
    # A model that was pulled anew may have its old worker beside the new one for a while.
    workers = list({worker.name: worker for worker in workers}.values())
    info = InfoMetricFamily("agentserve_model", "A model that a worker process serves", labels=["model"])
    features = GaugeMetricFamily(
        "agentserve_runtime_feature_state", "1 if it is on", labels=["model", "device", "feature"]
    )
    for worker in workers:
        if worker.model is not None:
            device = device_label(worker.model.device)
            info.add_metric(
                [worker.name],
                {"architecture": worker.model.architecture, "device": device, "state": worker.state},
            )
            for feature, is_on in _features(worker):
                features.add_metric([worker.name, device, feature], float(is_on))
    yield info
    yield features
    yield _by_model(workers, "model_load_seconds", "Until the model was ready", lambda one: one.load_s)
    yield _by_model(workers, "sessions", "Conversations that are remembered", lambda one: one.sessions)
    yield _by_model(workers, "worker_resident_bytes", "Resident memory", lambda one: one.rss_bytes)
    yield from _tiers(workers)
    yield from _drafts(workers)
    yield _blocks(workers)


def _by_model(
    workers: Iterable[WorkerSnapshot], name: str, text: str, value: Callable[[WorkerSnapshot], float]
) -> Metric:
    family = GaugeMetricFamily(f"agentserve_{name}", text, labels=["model"])
    for worker in workers:
        family.add_metric([worker.name], value(worker))
    return family


def _blocks(workers: Iterable[WorkerSnapshot]) -> Metric:
    family = GaugeMetricFamily("agentserve_blocks", "Blocks of the KV cache", labels=["model", "state"])
    for worker in workers:
        free = worker.blocks_total - worker.blocks_used - worker.blocks_cached
        for state, count in (("used", worker.blocks_used), ("cached", worker.blocks_cached), ("free", free)):
            family.add_metric([worker.name, state], count)
    return family


def _tiers(workers: Iterable[WorkerSnapshot]) -> Iterator[Metric]:
    """Bytes of the pool, the pins in it and the disk: taken, and what may be taken."""
    labels = ["model", "tier"]
    used = GaugeMetricFamily("agentserve_prefix_bytes", "Prefixes in memory and on disk", labels=labels)
    budget = GaugeMetricFamily("agentserve_prefix_budget_bytes", "What they may take", labels=labels)
    for worker in workers:
        tiers = worker.tiers
        for tier, taken, most in (
            ("pool", tiers.pool, tiers.pool_budget),
            ("pinned", tiers.pinned, tiers.pinned_budget),
            ("disk", tiers.disk, tiers.disk_budget),
        ):
            used.add_metric([worker.name, tier], taken)
            budget.add_metric([worker.name, tier], most)
    yield used
    yield budget


def _drafts(workers: Iterable[WorkerSnapshot]) -> Iterator[Metric]:
    """What drafts came to since the worker started, which is when these counters begin again at 0."""
    by_drafter = ["model", "drafter"]
    steps = CounterMetricFamily("agentserve_spec_attempts", "Steps with a draft", labels=by_drafter)
    drafted = CounterMetricFamily("agentserve_spec_drafted_tokens", "Tokens drafted", labels=by_drafter)
    accepted = CounterMetricFamily("agentserve_spec_accepted_tokens", "Of them accepted", labels=by_drafter)
    full = CounterMetricFamily(
        "agentserve_spec_full_accepts", "Drafts accepted to the end", labels=by_drafter
    )
    places = CounterMetricFamily(
        "agentserve_spec_accepted_tokens_per_position", "By place in the draft", labels=["model", "position"]
    )
    seconds = CounterMetricFamily("agentserve_spec_draft_seconds", "Time in drafters", labels=["model"])
    decoded = CounterMetricFamily("agentserve_decode_steps", "Steps that decoded", labels=["model"])
    for worker in workers:
        for one in worker.drafts.drafters:
            for family, value in (
                (steps, one.attempts),
                (drafted, one.drafted),
                (accepted, one.accepted),
                (full, one.full),
            ):
                family.add_metric([worker.name, one.drafter], value)
        for place, count in enumerate(worker.drafts.accepted_at):
            places.add_metric([worker.name, str(place)], count)
        seconds.add_metric([worker.name], worker.drafts.seconds)
        decoded.add_metric([worker.name], worker.drafts.steps)
    yield from (steps, drafted, accepted, full, places, seconds, decoded)


def _features(worker: WorkerSnapshot) -> Iterator[tuple[str, bool]]:
    assert worker.model is not None
    yield "exact", worker.model.exact
    yield "speculation", worker.model.speculative
    yield "draft_model", worker.model.draft_model is not None
    yield "compile_cache", worker.compile_cache_hit
