"""Requests that schemathesis makes up from the daemon's own description, and what it holds against the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any

import hypothesis
import requests
import schemathesis
from fuzz.outcome import Outcome
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

# One never ends, the other ends the daemon.
NOT_FUZZED = ("GET /agentserve/v1/events", "POST /agentserve/v1/shutdown")
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
TIMEOUT_S = 20
# Fields where what is made up comes to nothing: most such names are forbidden, most such tokens not the model's.
NAMING = ("name", "model", "prompt")
DEADLINES = ("timeout", "max_decode_ms")
_BODY_WEIGHT = 8
_SETTINGS = hypothesis.settings(
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)

Cases = st.SearchStrategy[schemathesis.Case]


def fuzz_from_schema(
    url: str, cases: int, seed: int, outcome: Outcome, before: Callable[[], None], only: str = ""
) -> None:
    """Sends at least so many cases, most of them to the operations that take a body; `only` to those whose name holds it.

    Calls `before` before each operation.
    """
    operations = [operation for operation in _operations(url) if only in operation.label]
    weights = [_BODY_WEIGHT if operation.body else 1 for operation in operations]
    unit = cases / sum(weights)
    with requests.Session() as session:
        for operation, weight in zip(operations, weights, strict=True):
            ways = list(_ways(operation))
            before()
            for way in ways:
                _send(operation.label, way, ceil(unit * weight / len(ways)), seed, session, outcome)


def _operations(url: str) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema.validate()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.label not in NOT_FUZZED:
            yield operation


def _ways(operation: Any) -> Iterator[Cases]:
    """Good requests, good ones that name what there is, and bad ones."""
    yield operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    named = {parameter.name: parameter.definition["example"] for parameter in operation.path_parameters}
    body = operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json", {})
    if named or body:
        good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE, path_parameters=named or None)
        yield good.map(lambda case: _completed(case, body.get("example", {})))
    if body or operation.query:
        yield operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)


def _completed(case: schemathesis.Case, example: Mapping[str, Any]) -> schemathesis.Case:
    """The case with what its body lacks from the example, and with what that names."""
    if isinstance(case.body, dict):
        names = {name: example[name] for name in NAMING if name in example}
        case.body = {**example, **case.body, **names}
    return case


def _send(
    label: str, cases: Cases, most: int, seed: int, session: requests.Session, outcome: Outcome
) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(_SETTINGS, max_examples=most)
    @hypothesis.given(case=cases)
    def send(case: schemathesis.Case) -> None:
        try:
            response = case.call(session=session, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            outcome.fault(label, f"{error}: {case.as_curl_command()}")
            return
        outcome.note(label, response.status_code)
        if response.status_code >= 500 and not _had_a_deadline(case, response):
            outcome.fault(label, f"{response.status_code} {response.text}: {case.as_curl_command()}")
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as failures:
            outcome.fault(label, str(failures))

    send()


def _had_a_deadline(case: schemathesis.Case, response: schemathesis.Response) -> bool:
    """Whether the answer is that the request had less time than it takes: by its own wish."""
    is_late = response.status_code == 504 and response.json()["error"]["code"] == "timeout"
    return is_late and any(case.body.get(name) is not None for name in DEADLINES)
