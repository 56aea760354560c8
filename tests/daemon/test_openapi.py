"""`/openapi.json`: that it is good OpenAPI, says all and nothing else, and agrees with what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from agentserve import __version__
from agentserve.daemon.app import build_app
from agentserve.daemon.errors import RequestError
from agentserve.daemon.openai.chat_schema import parse_chat
from agentserve.daemon.openai.completions_schema import parse_completion
from agentserve.daemon.openai.embeddings_schema import parse_embeddings
from agentserve.daemon.openai.generation_schema import RANGES
from agentserve.daemon.paths import Paths
from agentserve.daemon.store.registry import ModelStore
from agentserve.daemon.workers.process import Command
from encoder_store import put_encoder
from openapi_examples import furnish
from tiny_encoders import NAME as TINY
from tiny_encoders import make_tiny_encoder

Fake = Callable[..., Command]
Serve = Callable[..., Any]
Schema = dict[str, Any]
JSON = "application/json"
SHUTDOWN = ("/agentserve/v1/shutdown", "post")
EVENTS = ("/agentserve/v1/events", "get")
EMBEDDINGS = ("/v1/embeddings", "post")


@pytest.fixture
def described(serve: Serve, fake: Fake) -> Schema:
    return description(serve(command=fake()))


def description(live: Any) -> Schema:
    answer = httpx.get(f"{live.url}/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, JSON)
    found: Schema = answer.json()
    return found


def operations(described: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def validator(described: Schema, schema: Schema) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": described["components"]})


def test_it_is_good_openapi(described: Schema) -> None:
    schemathesis.openapi.from_dict(described).validate()
    assert described["openapi"].startswith("3.1.")
    assert described["info"] == {"title": "agentserve", "version": __version__}
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(ids) == len(set(ids))


def test_a_wrong_description_would_not_pass(described: Schema) -> None:
    described["paths"]["/health"]["get"]["responses"] = ["200"]
    with pytest.raises(Exception, match="is not of type"):
        schemathesis.openapi.from_dict(described).validate()


def test_every_reference_leads_somewhere(described: Schema) -> None:
    for reference in re.findall(r'"\$ref": "(.+?)"', json.dumps(described)):
        found: Any = described
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_all_routes_are_in_it_and_nothing_else(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    app: Any = build_app(live.daemon.service)
    while not hasattr(app, "routes"):
        app = app.app
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }
    assert {(path, method) for path, method, _ in operations(description(live))} == served


def test_a_method_that_is_not_in_it_is_405_with_those_that_are(serve: Serve, fake: Fake) -> None:
    live = serve(command=fake())
    described = description(live)
    with httpx.Client(base_url=live.url, timeout=10) as client:
        for path, methods in described["paths"].items():
            answer = client.put(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
            allowed = {method.lower() for method in answer.headers["allow"].split(", ")}
            assert allowed - {"head"} == set(methods), path


def test_its_examples_are_accepted_and_answered_as_it_says(serve: Serve) -> None:
    live = serve(unknown_model="default")
    described = description(live)
    with httpx.Client(base_url=live.url, timeout=10) as client:
        furnish(client)
        examples = [one for one in operations(described) if one[:2] not in (SHUTDOWN, EVENTS, EMBEDDINGS)]
        # What is removed is shown before.
        examples.sort(key=lambda one: one[1] == "delete")
        for path, method, operation in examples:
            try_example(client, described, path, method, operation)
        with client.stream("GET", EVENTS[0]) as stream:
            assert stream.headers["content-type"].partition(";")[0] in answers(described, *EVENTS, 200)
            assert next(stream.iter_lines()) == "event: snapshot"
        try_example(client, described, *SHUTDOWN, described["paths"][SHUTDOWN[0]][SHUTDOWN[1]])
    live.join()


def test_the_example_of_embeddings_is_accepted(serve: Serve, paths: Paths, tmp_path: Path) -> None:
    file = make_tiny_encoder().write(tmp_path / "tiny.gguf")
    put_encoder(ModelStore(paths.models), file, TINY, "all-minilm")
    live = serve(mock=False, model=TINY)
    described = description(live)
    with httpx.Client(base_url=live.url, timeout=10) as client:
        try_example(client, described, *EMBEDDINGS, described["paths"][EMBEDDINGS[0]][EMBEDDINGS[1]])


def try_example(client: httpx.Client, described: Schema, path: str, method: str, operation: Schema) -> None:
    for parameter in operation["parameters"]:
        if parameter.get("in") == "path":
            path_example = parameter["example"].replace("smollm2", "reference")
            path = path.replace(f"{{{parameter['name']}}}", path_example)
    content = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    body = content.get("example")
    if body is not None:
        validator(described, content["schema"]).validate(body)
    query = {"all": "true"} if operation["operationId"] == "cancelRequests" else None
    answer = client.request(method, path, json=body, params=query)
    assert answer.is_success, (method, path, answer.text)
    answered = operation["responses"][str(answer.status_code)]["content"]
    media = answer.headers["content-type"].partition(";")[0]
    if media == JSON:
        validator(described, answered[JSON]["schema"]).validate(answer.json())
    assert media in answered


def answers(described: Schema, path: str, method: str, status: int) -> Schema:
    content: Schema = described["paths"][path][method]["responses"][str(status)]["content"]
    return content


def chat(**fields: Any) -> Schema:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}


def complete(**fields: Any) -> Schema:
    return {"model": "m", "prompt": "x", **fields}


def parsed_chat(body: bytes) -> object:
    return parse_chat(body, "r")


def parsed_completion(body: bytes) -> object:
    return parse_completion(body, "r")


def beyond(low: float | None, high: float | None) -> Iterator[float]:
    """Both limits, and what is just outside of each."""
    for limit, step in ((low, -1), (high, 1)):
        if limit is not None:
            yield limit
            yield limit + step


TOOL = {"type": "function", "function": {"name": "f"}}
BODIES: list[tuple[str, Callable[[bytes], object], list[Schema]]] = [
    (
        "/v1/chat/completions",
        parsed_chat,
        [
            *(chat(**{name: value}) for name, limits in RANGES.items() for value in beyond(*limits)),
            *(chat(repetition_penalty=value) for value in (0, 0.1)),
            *(chat(model=value) for value in ("", " ", " x")),
            *(chat(messages=[{"role": value}]) for value in ("developer", "tool", "wizard")),
            *(chat(messages=[{"role": "user", "content": [{"type": t}]}]) for t in ("text", "image_url")),
            chat(messages=[]),
            *(chat(stream=value) for value in ("true", "yes", True)),
            *(chat(stop=value) for value in ("x" * 1024, "x" * 1025, ["x"] * 16, ["x"] * 17)),
            *(chat(logit_bias=value) for value in ({"1": 100}, {"1": 101}, {"x": 1}, {"1" * 10: 1}, {"": 1})),
            *(chat(logprobs=True, top_logprobs=value) for value in (-1, 0, 20, 21)),
            *(chat(functions=value) for value in (None, [], [{}])),
            *(chat(function_call=value) for value in ("auto", "f")),
            *(chat(modalities=value) for value in (["text"], ["audio"])),
            *(
                chat(tools=value)
                for value in ([TOOL], [{"type": "web_search"}], [{"type": "function"}], [{}])
            ),
            *(
                chat(tools=[{"type": "function", "function": value}])
                for value in ({}, {"name": ""}, {"name": "f" * 257}, {"name": "f", "parameters": []})
            ),
            *(chat(tools=[TOOL], tool_choice=value) for value in ("auto", "required", "any", {}, TOOL)),
            *(
                chat(response_format=value)
                for value in (
                    {},
                    {"type": "text"},
                    {"type": "xml"},
                    {"type": "json_object"},
                    {"type": "json_object", "schema": True},
                    {"type": "json_schema"},
                    {"type": "json_schema", "json_schema": {}},
                    {"type": "json_schema", "json_schema": {"schema": 1}},
                )
            ),
            *(chat(guided_json=value) for value in ({}, "{}", 1)),
            *(chat(guided_regex=value) for value in ("", "a", 1)),
            *(chat(guided_choice=value) for value in ([], [""], ["a"], "a")),
            *(chat(guided_grammar=value) for value in ("", "start: /a/", [])),
            *(chat(agentserve_session_id=value) for value in ("", "a", "-a", "a" * 128, "a" * 129, "a b")),
            *(chat(agentserve_pin_prefix=value) for value in (True, 0, -1, 1.5, "all", None)),
        ],
    ),
    (
        "/v1/completions",
        parsed_completion,
        [
            *(complete(**{name: value}) for name, limits in RANGES.items() for value in beyond(*limits)),
            *(complete(prompt=value) for value in (["a"], [1], [[1], [2]], [], ["a", 1], [[1], 1], {})),
            *(complete(logprobs=value) for value in (-1, 0, 20, 21)),
        ],
    ),
    (
        "/v1/embeddings",
        parse_embeddings,
        [
            *(
                {"input": value}
                for value in ("a", "", [], ["a"], [1], [[1]], [[]], ["a", 1], ["a", ""], ["a"] * 129)
            ),
            *({"input": "a" * length} for length in (8192, 8193)),
            *({"input": "a", "encoding_format": value} for value in ("base64", "hex")),
            *({"input": "a", "dimensions": value} for value in (0, 1)),
            *({"input": "a", "model": value} for value in (None, "", "m")),
        ],
    ),
]


def test_it_allows_what_the_code_takes_and_nothing_else(described: Schema) -> None:
    for path, parse, bodies in BODIES:
        content = described["paths"][path]["post"]["requestBody"]["content"][JSON]
        schema = validator(described, content["schema"])
        for body in bodies:
            assert schema.is_valid(body) == is_taken(parse, body), f"{path}: {body}"


def is_taken(parse: Callable[[bytes], object], body: Schema) -> bool:
    try:
        parse(json.dumps(body).encode())
    except RequestError:
        return False
    return True


def test_a_pin_is_described_as_what_a_chat_request_holds(described: Schema) -> None:
    schemas = described["components"]["schemas"]
    pin, chat_body = schemas["PinBody"]["properties"], schemas["ChatBody"]["properties"]
    for field in ("messages", "tools"):
        assert chat_body[field] in pin[field]["anyOf"]


def test_making_it_costs_nothing_until_somebody_asks() -> None:
    program = "import sys, agentserve.daemon.server; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "agentserve.daemon.openapi.route" in loaded
    assert not {name for name in loaded if name.startswith("agentserve.daemon.openapi_")}
