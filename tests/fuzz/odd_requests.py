"""Requests that a library for HTTP would not send: methods, targets, headers and bodies, byte by byte."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
from fuzz.odd_bodies import odd_body
from fuzz.outcome import Outcome, error_validator
from fuzz.schema_cases import NOT_FUZZED, TIMEOUT_S

METHODS = ("HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "get", "G" * 200)
PARTS = (
    "%00",
    "%0d%0aX-Injected:%201",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..",
    "%ff",
    "%ed%a0%80",
    "%f0%9f%98%80",
    "%",
    "%zz",
    "a%2fb",
    "a;b=c",
    "%20",
    "a:b@c",
    "x" * 8000,
    "%41" * 5000,
    "",
)
QUERIES = (
    "limit=" + "9" * 5000,
    "before=" + "9" * 400,
    "limit=%EF%BC%91",
    "limit=1&limit=x",
    "limit=-1",
    "limit=1e3",
    "limit=%00",
    "state=%00",
    "model=%00",
    "model=..%2F..%2Fx",
    "model=" + "x" * 8000,
    "model=%ed%a0%80",
    "salt=%ff",
    "salt=",
    "session=%00",
    "all=false",
    "all=true&session=x",
    "&&&===",
    "=",
    "a" * 30_000,
)
HEADERS = (
    "X-Request-ID: " + "x" * 30_000,
    "X-Request-ID: \xff\xfe",
    "X-Request-ID:",
    "User-Agent: \x80\xff" + "u" * 5000,
    "X-AgentServe-Device: \xff",
    "Content-Type: ;;;",
    "Content-Type: application/x-www-form-urlencoded",
    "Content-Type: text/plain\r\nOrigin: https://elsewhere.example",
    "Content-Type: \xff\r\nOrigin: null",
    "Content-Encoding: br",
    "Accept: nothing/at-all",
    "Authorization: \xff",
    "Expect: 100-continue",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Cookie: " + "a=b;" * 5000,
)
# What HTTP itself forbids is refused in plain text, before there is a request; so is a wrong Host.
BROKEN_HEADERS = (
    "Content-Length: x",
    "Content-Length: -1",
    "Content-Length: " + "1" * 5000,
    "Content-Length: 3\r\nContent-Length: 4",
    "Transfer-Encoding: gzip",
    "No colon",
    "Spaced : x",
    "Nul: a\x00b",
    "Host: \xff",
)
_NAME = re.compile(r"{\w+}")
_REFUSED = (400, 421)


@dataclass(frozen=True)
class Operation:
    """An operation of the document, with the example of its body and the names of the body's fields."""

    method: str
    path: str
    named: str
    example: Mapping[str, Any] | None
    fields: tuple[str, ...]
    methods: frozenset[str]

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Sent:
    """One request, as it goes over the wire."""

    method: str
    target: str
    body: bytes
    header: str = ""

    def head(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", self.header or "Accept: */*"]
        if "Host:" not in self.header:
            lines.append("Host: localhost")
        if "Content-Length:" not in self.header and "Transfer-Encoding:" not in self.header:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def fuzz_by_bytes(port: int, cases: int, seed: int, outcome: Outcome) -> None:
    """Sends so many odd requests, one on a connection."""
    dice = random.Random(seed)
    document = httpx.get(f"http://127.0.0.1:{port}/openapi.json").json()
    operations, errors = list(_operations(document)), error_validator(document)
    for _ in range(cases):
        operation = dice.choice(operations)
        sent = _odd(operation, dice)
        told = f"{sent.head()[:300]!r} {sent.body[:300]!r}"
        try:
            status, answer, body = _answer(port, sent)
        except (OSError, http.client.HTTPException) as error:
            outcome.fault(operation.label, f"{error!r}: {told}")
            continue
        outcome.note(f"odd {operation.label}", status)
        is_refused = sent.header in BROKEN_HEADERS and status in _REFUSED
        is_shaped = status < 400 or sent.method == "HEAD" or is_refused or errors.is_valid(_json(body))
        is_allowed = status != 405 or _allowed(answer) == operation.methods
        if status >= 500 or not is_shaped or not is_allowed:
            outcome.fault(operation.label, f"{status} {body[:300]!r}: {told}")


def _operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            content = described.get("requestBody", {}).get("content", {}).get("application/json", {})
            operation = Operation(
                method.upper(),
                path,
                next((one["example"] for one in described["parameters"] if one.get("in") == "path"), ""),
                content.get("example"),
                tuple(_fields(content.get("schema", {}), document["components"]["schemas"])),
                frozenset(name.upper() for name in methods),
            )
            if operation.label not in NOT_FUZZED:
                yield operation


def _fields(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[str]:
    for part in schema.get("allOf", [schema]):
        yield from components[part["$ref"].rpartition("/")[2]]["properties"] if "$ref" in part else ()


def _odd(operation: Operation, dice: random.Random) -> Sent:
    """The operation's own example with one thing changed."""
    good = Sent(
        operation.method,
        _NAME.sub(operation.named, operation.path),
        b"" if operation.example is None else json.dumps(operation.example).encode(),
    )
    changed = [
        replace(good, target=f"{good.target}?{dice.choice(QUERIES)}"),
        replace(good, header=dice.choice((*HEADERS, *BROKEN_HEADERS))),
    ]
    if others := sorted(set(METHODS) - operation.methods):
        changed.append(replace(good, method=dice.choice(others)))
    if operation.named:
        changed.append(replace(good, target=_NAME.sub(dice.choice(PARTS), operation.path)))
    if operation.example is not None:
        changed += [replace(good, body=odd_body(operation.example, dice, operation.fields))] * 4
    return dice.choice(changed)


def _answer(port: int, sent: Sent) -> tuple[int, http.client.HTTPResponse, bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(sent.head() + sent.body)
        answer = http.client.HTTPResponse(connection, method=sent.method)
        answer.begin()
        return answer.status, answer, answer.read()


def _allowed(answer: http.client.HTTPResponse) -> set[str]:
    """The methods that an answer says there are; HEAD goes with every GET."""
    return set(answer.getheader("Allow", "").split(", ")) - {"HEAD"}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
