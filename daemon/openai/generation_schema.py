"""What the bodies of all of OpenAI's generating routes have in common, and its way into a `GenerateRequest`.

Lenient where nothing is lost: unknown fields are ignored and null means absent. What would change the answer
and can't be honoured is refused by name, so nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from ...engine.protocol import Constraint, GenerateRequest, SamplingParams
from ..errors import InvalidRequest
from ..generation.choices import MOST_CHOICES
from ..generation.extensions import first_given, prefix_pin, session_id
from .constraints import GUIDED, answer_constraint
from .logprobs import biases
from .structured_outputs import structured_output, two_constraints

MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
# Both limits are allowed values; None is no limit.
RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "max_new_tokens": (1, None),
    "n": (1, MOST_CHOICES),
    "agentserve_draft_tokens": (0, None),
    "flashrt_K": (0, None),
    "timeout": (0.001, 86_400),
    "max_decode_ms": (1, 86_400_000),
}
# More than 0; the second is llama.cpp's name for the first.
REPETITION_PENALTIES = ("repetition_penalty", "repeat_penalty")
# Fields of other servers that change the answer and are not served, with the values that ask for nothing.
UNSERVED: dict[str, tuple[Any, ...]] = {
    "grammar": (None, ""),
    "json_schema": (None,),
    "stop_token_ids": (None, []),
    "bad_words": (None, []),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "allowed_token_ids": (None, []),
    "include_stop_str_in_output": (None, False),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1),
    "typical_p": (None, 1),
    "mirostat": (None, 0),
}


class StreamOptions(msgspec.Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that every route has; None stands for null and for absent alike."""

    model: str
    stream: bool | str | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    # The name that text-generation-inference has for it.
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    grammar: Any = None
    json_schema: Any = None
    stop_token_ids: Any = None
    bad_words: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    allowed_token_ids: Any = None
    include_stop_str_in_output: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    typical_p: Any = None
    mirostat: Any = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None
    agentserve_cache_salt: str | None = None
    agentserve_session_id: str | None = None
    flashrt_cache_salt: str | None = None
    flashrt_session_id: str | None = None
    agentserve_pin_prefix: Any = None
    flashrt_pin_prefix: Any = None
    agentserve_pin_best_effort: bool | None = None
    agentserve_draft_tokens: int | None = None
    flashrt_K: int | None = None
    agentserve_explain: bool | None = None
    agentserve_progress: bool | None = None
    timeout: float | None = None
    max_decode_ms: int | None = None


class Call(NamedTuple):
    """A request that was understood: which model, what to generate, in what shape to answer.

    `n` answers are wanted to `generate`, and to each prompt of `further`. `progress` asks that life signs of a
    stream say how far the request is.
    """

    model: str
    generate: GenerateRequest
    stream: bool
    include_usage: bool
    progress: bool = False
    n: int = 1
    further: tuple[GenerateRequest, ...] = ()


def call_of(body: GenerationBody, generate: GenerateRequest, *further: GenerateRequest) -> Call:
    """The call that a checked body is."""
    return Call(
        model=body.model,
        generate=generate,
        stream=_stream(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        progress=bool(body.agentserve_progress),
        n=body.n or 1,
        further=further,
    )


def check_body(body: GenerationBody, unserved: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises InvalidRequest for a value out of its range, and for a field of UNSERVED or of the route's own `unserved`
    unless its value, one of those listed there, asks for nothing."""
    if not body.model.strip():
        refuse("model must not be empty", "model")
    for name, harmless in {**UNSERVED, **unserved}.items():
        if getattr(body, name) not in harmless:
            refuse(f"{name} is not supported by this server", name, "unsupported_parameter")
    for name, (low, high) in RANGES.items():
        value = getattr(body, name)
        if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
            refuse(f"{name} must be {_limits(low, high)}, got {value}", name)
    for name in REPETITION_PENALTIES:
        if (penalty := getattr(body, name)) is not None and penalty <= 0:
            refuse(f"{name} must be above 0, got {penalty}", name)


def shared_fields(body: GenerationBody, namespace_keys: Sequence[str]) -> dict[str, Any]:
    """The fields of a `GenerateRequest` that mean the same on every route; the namespace is what the first of
    `namespace_keys` that is given says. Raises InvalidRequest."""
    limits = [
        limit
        for limit in (body.max_tokens, body.max_completion_tokens, body.max_new_tokens)
        if limit is not None
    ]
    pin = first_given(body.agentserve_pin_prefix, body.flashrt_pin_prefix)
    return {
        "constraint": _constraint(body),
        "sampling": _sampling(body),
        "max_new_tokens": min(limits, default=None),
        "stop": _stops(body.stop),
        "timeout_s": _timeout(body),
        "namespace": _namespace(body, namespace_keys),
        "session_id": session_id(first_given(body.agentserve_session_id, body.flashrt_session_id)),
        "pin": prefix_pin(pin, body.agentserve_pin_best_effort),
        "draft_tokens": first_given(body.agentserve_draft_tokens, body.flashrt_K),
        "explain": bool(body.agentserve_explain),
    }


def refuse(message: str, param: str, code: str = "invalid_value") -> NoReturn:
    """Raises the InvalidRequest that says so."""
    raise InvalidRequest(message, param=param, code=code)


def _constraint(body: GenerationBody) -> Constraint | None:
    one = answer_constraint(body.response_format, {name: getattr(body, name) for name in GUIDED})
    other = structured_output(body.structured_outputs)
    if one is not None and other is not None:
        raise two_constraints(one, other)
    return one or other


def _limits(low: float | None, high: float | None) -> str:
    return f"at least {low}" if high is None else f"between {low} and {high}"


def _namespace(body: GenerationBody, keys: Sequence[str]) -> str:
    given = {
        "prompt_cache_key": body.prompt_cache_key,
        "cache_salt": body.cache_salt,
        "agentserve_cache_salt": first_given(body.agentserve_cache_salt, body.flashrt_cache_salt),
    }
    return next((salt for key in keys if (salt := given[key])), "")


def _timeout(body: GenerationBody) -> float | None:
    """The deadline in seconds; the shorter one if the request names two."""
    times = [body.timeout, None if body.max_decode_ms is None else body.max_decode_ms / 1000]
    return min((seconds for seconds in times if seconds is not None), default=None)


def _sampling(body: GenerationBody) -> SamplingParams:
    repetition = first_given(*(getattr(body, name) for name in REPETITION_PENALTIES))
    return SamplingParams(
        temperature=body.temperature,
        top_k=None if body.top_k is None else max(body.top_k, 0),
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=1.0 if repetition is None else repetition,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=body.seed,
        logit_bias=biases(body.logit_bias),
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MOST_STOPS:
        refuse(f"stop: at most {MOST_STOPS} strings, got {len(stops)}", "stop")
    longest = max(map(len, stops), default=0)
    if longest > MOST_STOP_CHARACTERS:
        refuse(f"stop: at most {MOST_STOP_CHARACTERS} characters in each string, got {longest}", "stop")
    return tuple(text for text in stops if text)


def _stream(stream: bool | str | None) -> bool:
    if isinstance(stream, str):
        if stream.lower() not in ("true", "false"):
            refuse(f"stream: expected true or false, got {stream!r}", "stream", "invalid_type")
        return stream.lower() == "true"
    return bool(stream)
