"""What `/openapi.json` says of each route: its parameters, its body, and how it answers.

The examples name what a reader is likely to have: a model called smollm2, a session called work, a pin called rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..api.health import ShutdownBody
from ..api.pins import PinBody
from ..api.requests import LARGEST_NUMBER, LONGEST_PAGE, PAGE, STATES
from ..api.sessions import ForkBody, TruncateBody
from ..errors import (
    BodyTooLarge,
    Cancelled,
    Conflict,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    QueueFull,
    RequestError,
    Unavailable,
)
from ..http.hosts import UnsupportedMediaType
from ..openai.chat_schema import ChatBody
from ..openai.completions_schema import CompletionBody
from ..openai.embeddings_schema import EmbeddingsBody
from ..openai.tokens import DetokenizeBody, RenderBody, TokenizeBody
from ..snapshot import RequestRecord, StatusSnapshot

Schema = dict[str, Any]
Errors = tuple[type[RequestError], ...]

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"

_BODY: Errors = (InvalidRequest, BodyTooLarge, UnsupportedMediaType)
_LOADED: Errors = (ModelNotFound, Unavailable)
_HELD: Errors = (*_LOADED, QueueFull)
_GENERATES: Errors = (*_BODY, *_HELD, Cancelled)

# OpenAPI 3.1 has no words for a stream of events.
ANY: Schema = {}
_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": LARGEST_NUMBER}
_OF_MODEL = {"model": _STRING, "salt": _STRING}


def answer(*required: str) -> Schema:
    """The schema of an object that has at least these fields."""
    return {"type": "object", "required": list(required)}


def listed(name: str, item: Schema, *required: str) -> Schema:
    """The schema of an object with a list called `name`, and at least these further fields."""
    return answer(name, *required) | {"properties": {name: {"type": "array", "items": item}}}


_ANSWER = answer("id", "object", "created", "model", "system_fingerprint", "choices", "usage", "agentserve")
_MODEL = answer("id", "object", "created", "owned_by", "capabilities")
_TOKENS = ("model", "count", "max_model_len", "tokens")
_PIN = answer("name", "model", "salted", "tokens", "bytes", "tier", "on_disk", "hits", "created")
_SESSION = answer("id", "model", "salted")
_LIVE = answer("status", "alive", "version")
_READY = answer("status", "ready", "reasons")
_CANCELLED = listed("cancelled", _STRING)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a route. `bodies` are read from the same object; an `answer` is a schema or a type, by media type.

    `others` are answers that are no errors of the usual shape, by status. `example` is a body that is good, and
    `named` an example of what the path names.
    """

    id: str
    summary: str
    answers: Mapping[str, Any]
    status: int = 200
    errors: Errors = ()
    bodies: tuple[type, ...] = ()
    is_body_optional: bool = False
    example: Mapping[str, Any] = field(default_factory=dict)
    named: str = ""
    query: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    others: Mapping[int, Schema] = field(default_factory=dict)


_HELLO = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}]}


def _cancel(operation_id: str, *errors: type[RequestError]) -> Operation:
    return Operation(
        operation_id,
        "Cancels a request by the id of its answer or by its X-Request-ID.",
        {JSON: _CANCELLED},
        errors=(NotFound, *errors),
        named="my-request",
    )


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "chat",
        "Answers a conversation.",
        {JSON: _ANSWER, EVENTS: ANY},
        errors=_GENERATES,
        bodies=(ChatBody,),
        example={**_HELLO, "max_tokens": 16},
    ),
    ("POST", "/v1/completions"): Operation(
        "complete",
        "Continues a bare prompt.",
        {JSON: _ANSWER, EVENTS: ANY},
        errors=_GENERATES,
        bodies=(CompletionBody,),
        example={"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 16},
    ),
    ("POST", "/v1/embeddings"): Operation(
        "embed",
        "Makes a vector of each text.",
        {JSON: listed("data", answer("object", "index", "embedding"), "object", "model", "usage")},
        errors=_GENERATES,
        bodies=(EmbeddingsBody,),
        example={"model": "all-minilm", "input": ["the quick fox", "a lazy dog"]},
        headers={"X-AgentServe-Device": _STRING},
    ),
    ("GET", "/v1/models"): Operation(
        "listModels",
        "The models of the store.",
        {JSON: listed("data", _MODEL, "object")},
        errors=(Unavailable,),
    ),
    ("GET", "/v1/models/{name}"): Operation(
        "showModel", "One model of the store.", {JSON: _MODEL}, errors=_LOADED, named="smollm2"
    ),
    ("POST", "/v1/tokenize"): Operation(
        "tokenize",
        "The tokens of a text.",
        {JSON: answer(*_TOKENS)},
        errors=(*_BODY, *_HELD),
        bodies=(TokenizeBody,),
        example={"prompt": "Hello world", "return_token_strs": True},
    ),
    ("POST", "/v1/detokenize"): Operation(
        "detokenize",
        "The text of tokens.",
        {JSON: answer("model", "prompt")},
        errors=(*_BODY, *_HELD),
        bodies=(DetokenizeBody,),
        example={"tokens": [72, 101, 108, 108, 111]},
    ),
    ("POST", "/v1/chat/render"): Operation(
        "render",
        "The prompt that a chat request would make.",
        {JSON: answer("prompt", *_TOKENS, "stable_tokens", "turn_start", "canonical_tokens")},
        errors=(*_BODY, *_HELD),
        bodies=(ChatBody, RenderBody),
        example=_HELLO,
    ),
    ("POST", "/v1/requests/{id}/cancel"): _cancel("cancelRequestByPost", UnsupportedMediaType),
    ("GET", "/agentserve/v1/pins"): Operation(
        "listPins",
        "The pinned prefixes of the loaded models.",
        {JSON: listed("pins", _PIN, "models")},
        errors=_LOADED,
        query=_OF_MODEL,
    ),
    ("POST", "/agentserve/v1/pins"): Operation(
        "pin",
        "Pins a prefix under a name.",
        {JSON: _PIN},
        status=201,
        errors=(*_BODY, *_HELD),
        bodies=(PinBody,),
        example={"name": "rules", "text": "Follow the rules of this repository. " * 8},
    ),
    ("GET", "/agentserve/v1/pins/{name}"): Operation(
        "showPin", "One pinned prefix.", {JSON: _PIN}, errors=_LOADED, named="rules", query=_OF_MODEL
    ),
    ("DELETE", "/agentserve/v1/pins/{name}"): Operation(
        "unpin", "Removes a pin.", {JSON: _PIN}, errors=_HELD, named="rules", query=_OF_MODEL
    ),
    ("GET", "/agentserve/v1/sessions"): Operation(
        "listSessions",
        "The conversations that the loaded models remember.",
        {JSON: listed("sessions", _SESSION)},
        errors=_LOADED,
        query=_OF_MODEL,
    ),
    ("GET", "/agentserve/v1/sessions/{id}"): Operation(
        "showSession",
        "One session.",
        {JSON: _SESSION},
        errors=(*_LOADED, Conflict),
        named="work",
        query=_OF_MODEL,
    ),
    ("DELETE", "/agentserve/v1/sessions/{id}"): Operation(
        "forgetSession",
        "Forgets a session.",
        {JSON: _SESSION},
        errors=(*_LOADED, Conflict),
        named="work",
        query=_OF_MODEL,
    ),
    ("POST", "/agentserve/v1/sessions/{id}/fork"): Operation(
        "forkSession",
        "Makes a session with the same tokens.",
        {JSON: _SESSION},
        status=201,
        errors=(*_BODY, *_LOADED, Conflict),
        bodies=(ForkBody,),
        is_body_optional=True,
        example={"session_id": "side-work"},
        named="work",
        query=_OF_MODEL,
    ),
    ("POST", "/agentserve/v1/sessions/{id}/truncate"): Operation(
        "truncateSession",
        "Cuts a session.",
        {JSON: _SESSION},
        errors=(*_BODY, *_LOADED, Conflict),
        bodies=(TruncateBody,),
        example={"tokens": 32},
        named="work",
        query=_OF_MODEL,
    ),
    ("GET", "/agentserve/v1/requests"): Operation(
        "listRequests",
        f"Records of requests, newest first; {PAGE} of them, or `limit`, at most {LONGEST_PAGE}.",
        {JSON: answer("requests", "before")},
        errors=(InvalidRequest,),
        query={
            "limit": _COUNT,
            "before": _COUNT,
            "state": {"enum": sorted(STATES)},
            "client": _STRING,
            "session": _STRING,
        },
    ),
    ("DELETE", "/agentserve/v1/requests"): Operation(
        "cancelRequests",
        "Cancels all requests, or those of a session.",
        {JSON: _CANCELLED},
        errors=(InvalidRequest,),
        query={"all": {"enum": ["true"]}, "session": _STRING},
    ),
    ("GET", "/agentserve/v1/requests/{id}"): Operation(
        "showRequest",
        "The record of a request.",
        {JSON: RequestRecord},
        errors=(NotFound,),
        named="my-request",
    ),
    ("DELETE", "/agentserve/v1/requests/{id}"): _cancel("cancelRequest"),
    ("GET", "/"): Operation("root", "Says that it runs.", {TEXT: _STRING}),
    ("GET", "/health"): Operation(
        "health",
        "Models, queue, requests and memory.",
        {JSON: answer("status", "version", "models", "queue")},
    ),
    **{
        ("GET", f"/health/{name}"): Operation(name, "Whether the process is alive.", {JSON: _LIVE})
        for name in ("live", "liveness")
    },
    **{
        ("GET", f"/health/{name}"): Operation(
            name, "Whether requests are served.", {JSON: _READY}, others={503: _READY}
        )
        for name in ("ready", "readiness")
    },
    ("GET", "/agentserve/v1/status"): Operation("status", "All about the daemon.", {JSON: StatusSnapshot}),
    ("POST", "/agentserve/v1/shutdown"): Operation(
        "shutdown",
        "Ends the daemon.",
        {JSON: answer("stopping", "active")},
        status=202,
        errors=_BODY,
        bodies=(ShutdownBody,),
        is_body_optional=True,
        example={"drain": False},
    ),
    ("GET", "/agentserve/v1/events"): Operation(
        "events", "A StatusSnapshot whenever something changes.", {EVENTS: ANY}, errors=(Unavailable,)
    ),
    ("GET", "/metrics"): Operation("metrics", "Counts and times for Prometheus.", {TEXT: _STRING}),
    ("GET", "/openapi.json"): Operation("describe", "This description.", {JSON: answer("openapi", "paths")}),
}
