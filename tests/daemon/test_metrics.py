"""/metrics after one request of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from agentserve.daemon.records.gauges import device_label
from agentserve.daemon.workers.process import Command
from prometheus_client.parser import text_string_to_metric_families
from raw_http import RawRequest

Fake = Callable[..., Command]
Serve = Callable[..., Any]
Series = dict[str, list[tuple[dict[str, str], float]]]
CHAT = "/v1/chat/completions"


def post(live: Any, orders: str, **fields: Any) -> httpx.Response:
    body = {"model": "reference", "messages": [{"role": "user", "content": orders}], **fields}
    return httpx.post(f"{live.url}{CHAT}", json=body)


def scrape(live: Any) -> Series:
    answer = httpx.get(f"{live.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Series = {}
    for family in text_string_to_metric_families(answer.text):
        found[family.name] = []
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def value(series: Series, name: str, **labels: str) -> float:
    (only,) = [value for given, value in series[f"agentserve_{name}"] if given == labels]
    return only


def one_of_each(live: Any) -> None:
    post(live, "deltas=3")
    post(live, "reject=template_error")
    with RawRequest(live, "deltas=2 fail_after=1 step=0.1", stream=True) as raw:
        raw.to_the_end()
    with RawRequest(live, "deltas=1 hold", stream=True) as raw:
        raw.until(b"w0 ")
    httpx.get(f"{live.url}/nothing/here")
    live.until(lambda: not live.daemon.service.ledger.active)


def test_every_series_that_is_declared_moves(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    one_of_each(live)
    with RawRequest(live, "prefill=60", stream=True) as raw:
        raw.until(b"role")
        answer = httpx.get(f"{live.url}/metrics")
    families = list(text_string_to_metric_families(answer.text))
    assert len(families) > 25
    still = {one.name for one in families if not any(sample.value for sample in one.samples)}
    # Of the fake worker, the graph cache is on, so that one of its switches is not 0.
    assert still == set()


def test_terminal_states_reasons_and_tokens_are_counted(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    one_of_each(live)
    series = scrape(live)
    ended = {labels["state"]: value for labels, value in series["agentserve_generation_requests_total"]}
    assert ended == {"done": 1, "rejected": 1, "error": 1, "cancelled": 1}
    assert value(series, "rejections_total", reason="template_error") == 1
    assert value(series, "cancellations_total", reason="client_disconnected") == 1
    assert value(series, "errors_total", endpoint=CHAT, error_type="template_error") == 1
    assert value(series, "errors_total", endpoint=CHAT, error_type="internal_error") == 1
    assert value(series, "errors_total", endpoint="unmatched", error_type="http_404") == 1
    assert value(series, "requests_total", endpoint=CHAT, method="POST", status="200") == 3
    assert value(series, "requests_total", endpoint=CHAT, method="POST", status="400") == 1
    assert value(series, "prefix_actions_total", model="reference", action="rebuild") == 3
    assert value(series, "prompt_tokens_total", model="reference", source="computed") == 3
    assert value(series, "inference_tokens_total", model="reference", type="completion") == 5
    assert value(series, "time_to_first_token_seconds_count", model="reference") == 3
    assert value(series, "queue_time_seconds_sum", endpoint=CHAT) > 0
    assert value(series, "blocks", model="reference", state="used") == 7
    assert value(series, "sessions", model="reference") == 2


def test_labels_do_not_grow_with_what_clients_invent(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    for i in range(20):
        post(live, "deltas=1", model=f"invented-{i}")
        httpx.get(f"{live.url}/invented/{i}")
        httpx.request(f"INVENTED{i}", f"{live.url}/health", headers={"User-Agent": f"invented-{i}"})
        httpx.get(f"{live.url}/agentserve/v1/requests/invented-{i}")
    assert "invented" not in httpx.get(f"{live.url}/metrics").text.lower()


def test_devices_are_a_closed_set() -> None:
    assert [device_label(name) for name in ("CPU", "GPU.1", "NPU", "mock", "quantum", None)] == [
        "cpu",
        "gpu",
        "npu",
        "mock",
        "unknown",
        "unknown",
    ]
