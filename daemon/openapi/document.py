"""The OpenAPI document of a list of routes, out of the table of operations and the types of bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import getdoc
from typing import Any

import msgspec
from starlette.routing import Route

from ... import __version__
from ..errors import Cancelled, RequestError
from ..openai.errors import ErrorEnvelope
from .bodies import narrow
from .operations import ANY, JSON, OPERATIONS, TEXT, Operation, Schema

_COMPONENT = "#/components/schemas/{name}"
_CONVERTOR = re.compile(r"{(\w+):\w+}")
_IN_PATH = re.compile(r"{(\w+)}")
_MISDIRECTED = 421


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The description of these routes. Raises KeyError for one that is not in the table of operations."""
    paths: dict[str, Schema] = {}
    described = [(path, method, OPERATIONS[method, path]) for path, method in sorted(_methods(routes))]
    for path, method, operation in described:
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation)
    operations = [operation for _, _, operation in described]
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentserve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _schemas(operations),
            "responses": _responses(operations),
            "parameters": {"RequestId": _parameter("header", "X-Request-ID", {"type": "string"})},
            "headers": {"RequestId": {"schema": {"type": "string"}, "required": True}},
        },
    }


def _methods(routes: Iterable[Route]) -> Iterator[tuple[str, str]]:
    """Path and method of each operation; HEAD goes with every GET."""
    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            yield _CONVERTOR.sub(r"{\1}", route.path), method


def _operation(path: str, operation: Operation) -> Schema:
    described: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [*_parameters(path, operation), {"$ref": "#/components/parameters/RequestId"}],
        "responses": _answers(operation),
    }
    if operation.bodies:
        schemas = [_reference(body) for body in operation.bodies]
        schema = schemas[0] if len(schemas) == 1 else {"allOf": schemas}
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {JSON: {"schema": schema, "example": operation.example}},
        }
    return described


def _parameters(path: str, operation: Operation) -> Iterator[Schema]:
    for name in _IN_PATH.findall(path):
        yield _parameter("path", name, {"type": "string", "minLength": 1}) | {
            "required": True,
            "example": operation.named,
        }
    for name, schema in operation.query.items():
        yield _parameter("query", name, schema)
    for name, schema in operation.headers.items():
        yield _parameter("header", name, schema)


def _parameter(place: str, name: str, schema: Schema) -> Schema:
    return {"in": place, "name": name, "schema": schema}


def _answers(operation: Operation) -> Schema:
    content = {media: _content(answer) for media, answer in operation.answers.items()}
    answers: Schema = {str(operation.status): _response(operation.summary, content)}
    for status, schema in operation.others.items():
        answers[str(status)] = _response(operation.summary, {JSON: {"schema": schema}})
    for status in sorted({_MISDIRECTED, *_error_statuses(operation)}):
        answers[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return answers


def _responses(operations: Iterable[Operation]) -> Schema:
    """The errors of all operations, by status."""
    kinds = {kind for operation in operations for kind in operation.errors}
    content = {JSON: {"schema": _reference(ErrorEnvelope)}}
    responses: Schema = {
        str(_MISDIRECTED): _response("The Host is not allowed.", {TEXT: {"schema": {"type": "string"}}})
    }
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        for status in _statuses(kind):
            told = responses.get(str(status), {}).get("description", "")
            responses[str(status)] = _response(f"{told} {_told(kind)}".strip(), content)
    return dict(sorted(responses.items()))


def _response(description: str, content: Schema) -> Schema:
    headers = {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}}
    return {"description": description, "headers": headers, "content": content}


def _error_statuses(operation: Operation) -> set[int]:
    return {status for kind in operation.errors for status in _statuses(kind)}


def _statuses(kind: type[RequestError]) -> set[int]:
    if issubclass(kind, Cancelled):
        return {status for status, _, _ in kind.TABLE.values()}
    return {kind.status}


def _told(kind: type[RequestError]) -> str:
    return (getdoc(kind) or "").partition("\n")[0]


def _schemas(operations: Iterable[Operation]) -> Schema:
    named = {
        kind
        for operation in operations
        for kind in (*operation.bodies, *operation.answers.values())
        if isinstance(kind, type)
    }
    types = [*sorted(named, key=lambda kind: kind.__name__), ErrorEnvelope]
    _, components = msgspec.json.schema_components(types, ref_template=_COMPONENT)
    narrow(components)
    return components


def _content(answer: Any) -> Schema:
    if answer is ANY:
        return {}
    return {"schema": _reference(answer) if isinstance(answer, type) else answer}


def _reference(kind: Any) -> Schema:
    return {"$ref": _COMPONENT.format(name=kind.__name__)}
