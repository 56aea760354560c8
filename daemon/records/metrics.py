"""`/metrics`: the series of a Prometheus registry, fed with ended requests and read from the daemon's own state.

Every set of labels is bounded: routes are those of the application, models those that were served, devices and
methods come from a closed list, and all else is an enumeration of ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..snapshot import RequestRecord, StatusSnapshot
from .gauges import device_label, gauges
from .request_state import TERMINAL

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_UNMATCHED = "unmatched"
_NO_MODEL = "none"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)

# A second series beside each counter, with its birth time, that nothing reads.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counters and histograms since the start; `snapshot` gives the state that gauges are read from."""

    def __init__(self, snapshot: Callable[[], StatusSnapshot]) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_Gauges(snapshot))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"agentserve_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"agentserve_{name}_seconds", text, labels, registry=registry, buckets=buckets)

        self._http = counter("requests", "HTTP requests", "endpoint", "method", "status")
        self._errors = counter("errors", "Requests that ended in an error", "endpoint", "error_type")
        self._latency = histogram("request_latency", "Until the answer was complete", ("endpoint",), _SECONDS)
        self._ended = counter("generation_requests", "Generation requests, by terminal state", "state")
        self._cancelled = counter("cancellations", "Cancelled generation requests", "reason")
        self._rejected = counter("rejections", "Rejected generation requests", "reason")
        self._prefix = counter("prefix_actions", "How prompts met what is remembered", "model", "action")
        self._misses = counter("cache_misses", "Why a prompt was computed", "model", "reason")
        self._prompt = counter("prompt_tokens", "Prompt tokens, reused or computed", "model", "source")
        self._tokens = counter("inference_tokens", "Tokens of ended requests", "model", "type")
        self._inference = counter("inference", "Generation requests that ran", "model", "device", "type")
        self._routed = counter("routing_decisions", "Which device was chosen", "device", "reason")
        self._executed = counter(
            "routing_executions",
            "Which device ran it",
            "routed_device",
            "execution_device",
            "fallback_reason",
        )
        self._busy = histogram(
            "inference_latency", "From the beginning of prefill to the end", ("model", "device"), _SECONDS
        )
        self._queue = histogram("queue_time", "Waiting in the worker's queue", ("endpoint",), _SECONDS)
        self._first = histogram("time_to_first_token", "From arrival to the first text", ("model",), _SECONDS)
        self._gap = histogram(
            "inter_token_latency",
            "Mean time per token of a request, without its first",
            ("model",),
            _TOKEN_SECONDS,
        )
        self._speed = Gauge(
            "agentserve_tokens_per_second",
            "Decoding speed of the last request",
            ("model", "device"),
            registry=registry,
        )
        for state in TERMINAL:
            self._ended.labels(state.value)

    def http(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts one HTTP request that was answered."""
        route = scope.get("route")
        endpoint = route.path if isinstance(route, Route) else _UNMATCHED
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._http.labels(endpoint, method, str(status)).inc()
        self._latency.labels(endpoint).observe(seconds)
        if status >= 400:
            self._errors.labels(endpoint, scope.get(ERROR_TYPE) or f"http_{status}").inc()

    def ended(self, record: RequestRecord) -> None:
        """Counts one generation request that has ended."""
        assert record.terminal_state is not None
        self._ended.labels(record.terminal_state).inc()
        if record.terminal_state == "cancelled":
            self._cancelled.labels(record.reason).inc()
        elif record.terminal_state == "rejected":
            self._rejected.labels(record.reason).inc()
        elif record.terminal_state == "error" and record.status == 200:
            self._errors.labels(record.route, record.reason).inc()
        if record.prefix_action is not None:
            self._ran(record)

    def _ran(self, record: RequestRecord) -> None:
        model, device = record.model or _NO_MODEL, device_label(record.device)
        self._inference.labels(model, device, "stream" if record.stream else "single").inc()
        self._routed.labels(device, "single_engine_runtime").inc()
        self._executed.labels(device, device, "none").inc()
        self._prefix.labels(model, record.prefix_action).inc()
        if record.cache_miss_reason is not None:
            self._misses.labels(model, record.cache_miss_reason).inc()
        self._prompt.labels(model, "reused").inc(record.cached_tokens or 0)
        self._prompt.labels(model, "computed").inc(record.new_prefill_tokens or 0)
        self._tokens.labels(model, "prompt").inc(record.prompt_tokens or 0)
        self._tokens.labels(model, "completion").inc(record.completion_tokens)
        self._observe_times(record, model, device)

    def _observe_times(self, record: RequestRecord, model: str, device: str) -> None:
        if record.queued_ms is not None:
            self._queue.labels(record.route).observe(record.queued_ms / 1000)
        if record.first_delta_ms is not None:
            self._first.labels(model).observe(record.first_delta_ms / 1000)
        if record.finished_at is not None and record.started_at is not None:
            self._busy.labels(model, device).observe(record.finished_at - record.started_at)
        if record.decode_tok_per_s:
            self._gap.labels(model).observe(1 / record.decode_tok_per_s)
            self._speed.labels(model, device).set(record.decode_tok_per_s)


ERROR_TYPE: Final = "agentserve.error_type"
"""Where a handler leaves the code of the error that it answered with, in the request's scope."""


class Measured:
    """Middleware that counts every HTTP request and times it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        # What is counted for a client that left before it was answered; see errors.Cancelled.
        status = 499

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            self.metrics.http(scope, status, time.monotonic() - began)


class _Gauges(Collector):
    def __init__(self, snapshot: Callable[[], StatusSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        tasks = GaugeMetricFamily(
            "agentserve_tasks", "Tasks of the daemon's event loop", value=len(asyncio.all_tasks())
        )
        return [tasks, *gauges(self._snapshot())]


def metrics_route(metrics: Metrics) -> Route:
    """`GET /metrics`, in the text format of Prometheus."""

    async def show(_request: Request) -> Response:
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE})

    return Route("/metrics", show)
