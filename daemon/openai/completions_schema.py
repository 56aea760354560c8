"""The body of OpenAI's completion request: bare prompts, as texts or as tokens, each answered `n` times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.protocol import MOST_TOP_LOGPROBS, GenerateRequest
from ..generation.choices import MOST_CHOICES
from ..generation.extensions import PIN_PREFIX, SALTS, SESSION_ID
from ..http.json_body import decode_body
from .generation_schema import Call, GenerationBody, call_of, check_body, refuse, shared_fields

_DEFAULT_TOKENS = 16
Prompt = str | tuple[int, ...]
# Fields of conversations, with the values that ask for nothing.
UNSERVED: dict[str, tuple[Any, ...]] = {"messages": (None, []), "tools": (None, [])}


class CompletionBody(GenerationBody, kw_only=True):
    """The whole body; None stands for null and for absent alike."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    messages: Any = None
    tools: Any = None


def parse_completion(body: bytes, request_id: str, namespace_keys: Sequence[str] = SALTS) -> Call:
    """Reads a completion request. Raises InvalidRequest, which names the field at fault in `param`."""
    wish = decode_body(body, CompletionBody)
    check_body(wish, {"best_of": (None, wish.n or 1), **UNSERVED})
    prompts = _prompts(wish.prompt)
    _check_prompts(prompts, wish.n or 1)
    _check_logprobs(wish)
    fields = _fields(wish, namespace_keys)
    first, *further = (GenerateRequest(request_id, prompt=prompt, **fields) for prompt in prompts)
    if further:
        _check_single(first)
    return call_of(wish, first, *further)


def _fields(wish: CompletionBody, namespace_keys: Sequence[str]) -> dict[str, Any]:
    fields = shared_fields(wish, namespace_keys)
    fields["max_new_tokens"] = fields["max_new_tokens"] or _DEFAULT_TOKENS
    return fields | {"suffix": wish.suffix or None, "echo": bool(wish.echo), "logprobs": wish.logprobs}


def _prompts(given: str | list[str | int | list[int]]) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        refuse("prompt: strings, tokens and arrays of tokens can't be mixed", "prompt", "invalid_type")
    if kinds == {int}:
        return (tuple(item for item in given if isinstance(item, int)),)
    return tuple(
        item if isinstance(item, str) else tuple(item) for item in given if not isinstance(item, int)
    )


def _check_prompts(prompts: tuple[Prompt, ...], n: int) -> None:
    if not prompts:
        refuse("prompt must not be empty", "prompt")
    if len(prompts) * n > MOST_CHOICES:
        message = (
            f"prompt: at most {MOST_CHOICES} choices in one request, got {len(prompts)} prompts times {n}"
        )
        refuse(message, "prompt" if n == 1 else "n")


def _check_logprobs(wish: CompletionBody) -> None:
    if wish.logprobs is None:
        return
    if not 0 <= wish.logprobs <= MOST_TOP_LOGPROBS:
        refuse(f"logprobs must be between 0 and {MOST_TOP_LOGPROBS}, got {wish.logprobs}", "logprobs")
    if wish.echo:
        message = "logprobs: those of the prompt, which echo would need, are not supported by this server"
        refuse(message, "logprobs", "unsupported_parameter")


def _check_single(request: GenerateRequest) -> None:
    """Raises InvalidRequest for what several prompts can't have in common."""
    for name, given in ((SESSION_ID, request.session_id), (PIN_PREFIX, request.pin)):
        if given is not None:
            refuse(f"{name} goes with one prompt only", name)
