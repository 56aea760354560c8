"""The body of OpenAI's chat request, as it is on the wire, and its way into a `GenerateRequest`.

Lenient where nothing is lost: unknown fields are ignored and null means absent. What would change the answer
and can't be honoured is refused by name, so nothing is dropped in silence.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from ..engine.protocol import GenerateRequest, Message, SamplingParams, ToolCall
from .errors import InvalidRequest

_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 1024
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Both limits are allowed values; None is no limit.
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "n": (1, 1),
}
# Fields that change the answer and are not served, with the values that ask for nothing.
_UNSERVED: dict[str, tuple[Any, ...]] = {
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "none", "auto"),
    "audio": (None,),
    "modalities": (None, [], ["text"]),
}
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_WRONG_TYPE = re.compile(r"Expected `(.+)`, got `(.+)`")
_MISSING = re.compile(r"Object missing required field `(.+)`")


class ContentPart(msgspec.Struct):
    """One part of a message's content; only text is served."""

    type: str = "text"
    text: str | None = None


class FunctionCall(msgspec.Struct):
    """What a tool call calls; `arguments` is JSON as text, or the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class AssistantToolCall(msgspec.Struct):
    """A tool call that the assistant made in an earlier turn."""

    function: FunctionCall
    id: str | None = None


class ChatMessage(msgspec.Struct):
    """One message; which fields mean something depends on `role`."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None


class StreamOptions(msgspec.Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """The whole body; None stands for null and for absent alike."""

    model: str
    messages: list[ChatMessage]
    stream: bool | str | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    audio: Any = None
    modalities: Any = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    agentserve_cache_salt: str | None = None
    agentserve_session_id: str | None = None


class ChatCall(NamedTuple):
    """A chat request that was understood: which model, what to generate, in what shape to answer."""

    model: str
    generate: GenerateRequest
    stream: bool
    include_usage: bool


def parse_chat(body: bytes, request_id: str) -> ChatCall:
    """Reads a chat request. Raises InvalidRequest, which names the field at fault in `param`."""
    chat = _decode(body)
    if not chat.model.strip():
        _refuse("model must not be empty", "model")
    _check(chat)
    return ChatCall(
        model=chat.model,
        generate=_generate_request(chat, request_id),
        stream=_stream(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
    )


def _decode(body: bytes) -> ChatBody:
    try:
        return msgspec.json.decode(body, type=ChatBody)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest(f"The request body is not valid JSON: {reason}", code="invalid_json") from None


def _wrong_type(text: str) -> InvalidRequest:
    what, _, path = text.partition(" - at `$")
    param = path.rstrip("`").lstrip(".")
    if match := _MISSING.fullmatch(what):
        param = f"{param}.{match[1]}".lstrip(".")
        return InvalidRequest(f"{param} is required", param=param, code="missing_required_parameter")
    if match := _WRONG_TYPE.fullmatch(what):
        expected, got = (" or ".join(_TYPES.get(t, t) for t in side.split(" | ")) for side in match.groups())
        what = f"expected {expected}, got {got}"
    return InvalidRequest(f"{param or 'The request body'}: {what}", param=param or None, code="invalid_type")


def _check(chat: ChatBody) -> None:
    if not chat.messages:
        _refuse("messages must not be empty", "messages")
    for name, harmless in _UNSERVED.items():
        if getattr(chat, name) not in harmless:
            _refuse(f"{name} is not supported by this server", name, "unsupported_parameter")
    for name, (low, high) in _RANGES.items():
        value = getattr(chat, name)
        if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
            _refuse(f"{name} must be {_limits(low, high)}, got {value}", name)
    if chat.repetition_penalty is not None and chat.repetition_penalty <= 0:
        _refuse(f"repetition_penalty must be above 0, got {chat.repetition_penalty}", "repetition_penalty")


def _limits(low: float | None, high: float | None) -> str:
    if low == high:
        return f"{low}"
    return f"at least {low}" if high is None else f"between {low} and {high}"


def _generate_request(chat: ChatBody, request_id: str) -> GenerateRequest:
    limits = [limit for limit in (chat.max_tokens, chat.max_completion_tokens) if limit is not None]
    return GenerateRequest(
        request_id=request_id,
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(chat.messages)),
        tools_json=_tools(chat.tools),
        template_options_json=_template_options(chat),
        sampling=_sampling(chat),
        max_new_tokens=min(limits, default=None),
        stop=_stops(chat.stop),
        namespace=chat.cache_salt or chat.agentserve_cache_salt or "",
        session_id=chat.agentserve_session_id or None,
    )


def _sampling(chat: ChatBody) -> SamplingParams:
    return SamplingParams(
        temperature=chat.temperature,
        top_k=None if chat.top_k is None else max(chat.top_k, 0),
        top_p=chat.top_p,
        min_p=chat.min_p,
        repetition_penalty=1.0 if chat.repetition_penalty is None else chat.repetition_penalty,
        presence_penalty=chat.presence_penalty or 0.0,
        frequency_penalty=chat.frequency_penalty or 0.0,
        seed=chat.seed,
    )


def _message(message: ChatMessage, where: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        _refuse(
            f"{where}.role: unknown role {message.role!r}; expected one of {', '.join(_ROLES)}",
            f"{where}.role",
        )
    calls = tuple(_tool_call(call) for call in message.tool_calls or ())
    content = _content(message.content, where)
    reasoning = message.reasoning_content or message.reasoning
    return Message(
        role=role,
        content=content or (None if calls else ""),
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=reasoning if isinstance(reasoning, str) else None,
    )


def _content(content: str | list[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type not in _TEXT_PARTS:
            _refuse(
                f"{where}.content[{i}]: {part.type!r} content is not supported; this model takes text",
                f"{where}.content[{i}]",
                "unsupported_content",
            )
    return "".join(part.text or "" for part in content)


def _tool_call(call: AssistantToolCall) -> ToolCall:
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments or {}).decode()
    return ToolCall(call.id or "", call.function.name, arguments)


def _tools(tools: list[dict[str, Any]] | None) -> str | None:
    # Hosted tools such as web_search are in every request of some agents and mean nothing here.
    functions = [tool for tool in tools or () if tool.get("type", "function") == "function"]
    return msgspec.json.encode(functions).decode() if functions else None


def _template_options(chat: ChatBody) -> str:
    options = dict(chat.chat_template_kwargs or {})
    if chat.enable_thinking is not None:
        options["enable_thinking"] = chat.enable_thinking
    return msgspec.json.encode(options).decode()


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > _MAX_STOPS:
        _refuse(f"stop: at most {_MAX_STOPS} strings, got {len(stops)}", "stop")
    longest = max(map(len, stops), default=0)
    if longest > _MAX_STOP_CHARACTERS:
        _refuse(f"stop: at most {_MAX_STOP_CHARACTERS} characters in each string, got {longest}", "stop")
    return tuple(text for text in stops if text)


def _stream(stream: bool | str | None) -> bool:
    if isinstance(stream, str):
        if stream.lower() not in ("true", "false"):
            _refuse(f"stream: expected true or false, got {stream!r}", "stream", "invalid_type")
        return stream.lower() == "true"
    return bool(stream)


def _refuse(message: str, param: str, code: str = "invalid_value") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)
