"""docs/observability.md names every field, series and reason that there is."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentserve.daemon.snapshot import RequestRecord
from agentserve.daemon.workers.process import Command
from agentserve.engine.protocol import CancelReason
from prometheus_client.parser import text_string_to_metric_families

Fake = Callable[..., Command]
Serve = Callable[..., Any]
PAGE = Path(__file__).parents[2] / "docs" / "observability.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text("utf-8")


def code(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", page))


def test_every_field_of_a_record_is_explained(page: str) -> None:
    assert {field.name for field in dataclasses.fields(RequestRecord)} <= code(page)


def test_every_reason_to_cancel_is_explained(page: str) -> None:
    assert {reason.value for reason in CancelReason} <= code(page)


def test_every_series_is_listed(serve: Serve, fake: Fake, page: str) -> None:
    live = serve(command=fake())
    body = {"model": "reference", "messages": [{"role": "user", "content": "deltas=2"}]}
    httpx.post(f"{live.url}/v1/chat/completions", json=body)
    families = text_string_to_metric_families(httpx.get(f"{live.url}/metrics").text)
    suffix = {"counter": "_total", "info": "_info"}
    names = {f"{one.name.removeprefix('agentserve_')}{suffix.get(one.type, '')}" for one in families}
    names = {name.replace("_info_info", "_info") for name in names}
    assert names <= code(page)


def test_the_progress_example_is_json_with_the_fields_that_are_sent(page: str) -> None:
    (example,) = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    assert set(json.loads(example)["agentserve"]["progress"]) == {
        "phase",
        "position",
        "tokens_done",
        "tokens_total",
    }
