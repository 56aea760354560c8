"""The schemas of request bodies: what the types say that bodies are decoded as, and what is checked beyond the types.

The limits, words and patterns are those that the checks use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...engine.protocol import MOST_TOP_LOGPROBS
from ..generation.extensions import SESSION_NAME, PrefixWish
from ..openai.chat_schema import REFUSAL_PART, ROLES, TEXT_PARTS
from ..openai.chat_schema import UNSERVED as UNSERVED_IN_CHAT
from ..openai.completions_schema import UNSERVED as UNSERVED_IN_COMPLETIONS
from ..openai.constraints import FORMATS, GUIDED
from ..openai.embeddings_schema import FORMATS as VECTOR_FORMATS
from ..openai.embeddings_schema import MOST_CHARACTERS as MOST_EMBEDDED_CHARACTERS
from ..openai.embeddings_schema import MOST_INPUTS
from ..openai.generation_schema import (
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    RANGES,
    REPETITION_PENALTIES,
    UNSERVED,
)
from ..openai.logprobs import LARGEST_BIAS, MOST_BIASES, TOKEN_ID
from ..openai.structured_outputs import ANY_OBJECT, KINDS
from ..openai.tokens import MOST_CHARACTERS, MOST_TOKENS
from ..openai.tools import MAX_NAME, WORDS

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_NAME: Schema = {"type": "string", "pattern": r"\S"}
_POSITIVE: Schema = {"exclusiveMinimum": 0}
_NUMBERS = ("integer", "number")


def narrow(components: Mapping[str, Schema]) -> None:
    """Changes the schemas of the bodies among `components`, which are msgspec's."""
    of = {name: schema["properties"] for name, schema in components.items() if "properties" in schema}
    for body in ("ChatBody", "CompletionBody"):
        for field, (low, high) in RANGES.items():
            _bound(of[body][field], {"minimum": low, "maximum": high})
        for field in REPETITION_PENALTIES:
            _bound(of[body][field], _POSITIVE)
        of[body] |= _generation()
    of["ChatBody"] |= _chat(of["ChatBody"])
    of["ChatMessage"]["role"] = _one_of(ROLES)
    of["ContentPart"]["type"] |= _one_of([*sorted(TEXT_PARTS), REFUSAL_PART])
    of["CompletionBody"] |= _only(UNSERVED_IN_COMPLETIONS)
    _bound(of["CompletionBody"]["logprobs"], {"minimum": 0, "maximum": MOST_TOP_LOGPROBS})
    of["CompletionBody"]["prompt"] = _texts_or_tokens({}, {"minItems": 1})
    _narrow_embeddings(of["EmbeddingsBody"])
    of["TokenizeBody"]["prompt"]["maxLength"] = MOST_CHARACTERS
    of["DetokenizeBody"]["tokens"]["maxItems"] = MOST_TOKENS
    _narrow_pin(of["PinBody"], of["ChatBody"])
    of["ForkBody"]["session_id"] = _session_id()
    for field in ("tokens", "drop_turns"):
        _bound(of["TruncateBody"][field], {"minimum": 1})


def _generation() -> Schema:
    stop = {"type": "string", "maxLength": MOST_STOP_CHARACTERS}
    bias = {"type": "number", "minimum": -LARGEST_BIAS, "maximum": LARGEST_BIAS}
    wish = {"anyOf": [_bound(branch, {"minimum": 0}) for branch in _branches(PrefixWish)] + [_NULL]}
    return {
        "model": _NAME,
        "stream": _or_null({"type": "boolean"}, _one_of(["true", "false"])),
        "stop": _or_null(stop, {"type": "array", "items": stop, "maxItems": MOST_STOPS}),
        "logit_bias": _or_null(
            {
                "type": "object",
                "propertyNames": {"pattern": f"^{TOKEN_ID.pattern}$"},
                "additionalProperties": bias,
                "maxProperties": MOST_BIASES,
            }
        ),
        "response_format": _or_null(_response_format()),
        **{name: _guided(name) for name in GUIDED},
        "structured_outputs": _or_null(_structured_outputs()),
        **_only(UNSERVED),
        "agentserve_session_id": _session_id(),
        "flashrt_session_id": _session_id(),
        "agentserve_pin_prefix": wish,
        "flashrt_pin_prefix": wish,
    }


def _chat(properties: Schema) -> Schema:
    _bound(properties["top_logprobs"], {"minimum": 0, "maximum": MOST_TOP_LOGPROBS})
    return {
        "messages": properties["messages"] | {"minItems": 1},
        "tools": _or_null({"type": "array", "items": _tool()}),
        "tool_choice": _or_null(_one_of(WORDS), _chosen_function()),
        **_only(UNSERVED_IN_CHAT),
    }


def _only(unserved: Mapping[str, Iterable[Any]]) -> Schema:
    """Fields that may have the values alone that ask for nothing."""
    return {name: _one_of(harmless) for name, harmless in unserved.items()}


def _tool() -> Schema:
    """A function, or a hosted tool, of which nothing but the type is read."""
    function = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
            "description": {"type": "string"},
            "parameters": {"type": ["object", "null"], "description": "A JSON Schema"},
        },
        "required": ["name"],
    }
    kind = {"type": {"const": "function"}}
    hosted = {"type": "object", "properties": {"type": {"not": kind["type"]}}, "required": ["type"]}
    called = {"type": "object", "properties": kind | {"function": function}, "required": ["function"]}
    return {"anyOf": [called, hosted]}


def _chosen_function() -> Schema:
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    properties = {"type": {"const": "function"}, "function": named}
    return {"type": "object", "properties": properties, "required": ["type", "function"]}


def _guided(name: str) -> Schema:
    return _or_null(msgspec.json.schema(GUIDED[name].type))


def _structured_outputs() -> Schema:
    properties = {kind: _guided(name) for kind, name in KINDS.items()}
    properties[ANY_OBJECT] = _or_null({"type": "boolean"})
    return {"type": "object", "properties": properties, "additionalProperties": _one_of([None, False])}


def _response_format() -> Schema:
    schema = {"type": ["object", "null"], "description": "A JSON Schema"}
    named = {"type": "object", "properties": {"name": {"type": "string"}, "schema": schema}}
    *others, last = FORMATS
    free = {"type": "object", "properties": {"type": _one_of(others), "schema": schema}, "required": ["type"]}
    bound = {
        "type": "object",
        "properties": {"type": {"const": last}, last: named},
        "required": ["type", last],
    }
    return {"anyOf": [free, bound]}


def _narrow_embeddings(properties: Schema) -> None:
    properties["input"] = _texts_or_tokens(
        {"minLength": 1, "maxLength": MOST_EMBEDDED_CHARACTERS}, {"minItems": 1, "maxItems": MOST_INPUTS}
    )
    properties["model"] = _or_null(_NAME)
    properties["encoding_format"] = _or_null(_one_of(VECTOR_FORMATS))
    _bound(properties["dimensions"], {"minimum": 1})


def _narrow_pin(properties: Schema, chat: Schema) -> None:
    """What is pinned may be that of a chat request, and is read as one."""
    for field in ("messages", "tools", "chat_template_kwargs"):
        properties[field] = _or_null(chat[field])
    for field in ("tokens", "ttl"):
        _bound(properties[field], _POSITIVE)


def _texts_or_tokens(text_limits: Schema, list_limits: Schema) -> Schema:
    """One text or the tokens of one, or a list of either. The types allow a mixed list, the checks do not."""
    text, token = {"type": "string", **text_limits}, {"type": "integer"}
    tokens = {"type": "array", "items": token, "minItems": 1}
    return {
        "anyOf": [text, tokens, *({"type": "array", "items": one, **list_limits} for one in (text, tokens))]
    }


def _session_id() -> Schema:
    return _or_null({"type": "string", "pattern": f"^({SESSION_NAME.pattern})?$"})


def _one_of(values: Iterable[Any]) -> Schema:
    return {"enum": list(values)}


def _or_null(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas, _NULL]}


def _branches(kind: Any) -> list[Schema]:
    schema: Schema = msgspec.json.schema(kind)
    branches: list[Schema] = schema["anyOf"]
    return branches


def _bound(schema: Schema, limits: Mapping[str, float | None]) -> Schema:
    """Sets the limits where `schema`, or one of its alternatives, is a number; returns it."""
    for branch in schema.get("anyOf", [schema]):
        if branch.get("type") in _NUMBERS:
            branch |= {name: limit for name, limit in limits.items() if limit is not None}
    return schema
