"""The body of OpenAI's chat request, as it is on the wire, and its way into a `GenerateRequest`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ...engine.protocol import GenerateRequest, Message
from ..generation.extensions import SALTS
from ..http.json_body import decode_body
from .generation_schema import Call, GenerationBody, call_of, check_body, refuse, shared_fields
from .logprobs import wanted_logprobs
from .template_options import effort_of, template_options
from .tools import AssistantToolCall, FunctionCall, call_of_history, offer, with_names

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
REFUSAL_PART = "refusal"
"""What an assistant may have said instead."""
ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    # The result of a `function_call`.
    "function": "tool",
}
# Fields of this route that change the answer and are not served, with the values that ask for nothing.
UNSERVED: dict[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "audio": (None,),
    "modalities": (None, [], ["text"]),
    "best_of": (None, 1),
    "chat_template": (None,),
    "web_search_options": (None,),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
}


class ContentPart(msgspec.Struct):
    """One part of a message's content; only text is served, and what an assistant refused with."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct):
    """One message; which fields mean something depends on `role`."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    function_call: FunctionCall | None = None
    refusal: Any = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None


class ChatBody(GenerationBody, kw_only=True):
    """The whole body; None stands for null and for absent alike."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    best_of: Any = None
    chat_template: Any = None
    web_search_options: Any = None
    continue_final_message: Any = None
    add_generation_prompt: Any = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Any = None
    thinking: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


def parse_chat(body: bytes, request_id: str, namespace_keys: Sequence[str] = SALTS) -> Call:
    """Reads a chat request. Raises InvalidRequest, which names the field at fault in `param`."""
    chat = decode_body(body, ChatBody)
    check_body(chat, UNSERVED)
    if not chat.messages:
        refuse("messages must not be empty", "messages")
    return call_of(chat, _generate_request(chat, request_id, namespace_keys))


def _generate_request(chat: ChatBody, request_id: str, namespace_keys: Sequence[str]) -> GenerateRequest:
    offered = offer(chat.tools, chat.tool_choice)
    return GenerateRequest(
        request_id=request_id,
        messages=_messages(chat.messages),
        tools_json=offered.tools_json,
        template_options_json=_template_options(chat),
        parallel_tool_calls=chat.parallel_tool_calls is not False,
        required_tools=offered.required,
        logprobs=wanted_logprobs(chat.logprobs, chat.top_logprobs),
        **shared_fields(chat, namespace_keys),
    )


def _messages(given: list[ChatMessage]) -> tuple[Message, ...]:
    return tuple(with_names(_message(message, f"messages[{i}]") for i, message in enumerate(given)))


def _message(message: ChatMessage, where: str) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        refuse(
            f"{where}.role: unknown role {message.role!r}; expected one of {', '.join(ROLES)}",
            f"{where}.role",
        )
    calls = tuple(call_of_history(call) for call in _calls(message))
    content = _content(message, where)
    reasoning = message.reasoning_content or message.reasoning
    return Message(
        role=role,
        content=content or (None if calls else ""),
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=reasoning if isinstance(reasoning, str) else None,
    )


def _calls(message: ChatMessage) -> list[AssistantToolCall]:
    calls = message.tool_calls or []
    return calls if message.function_call is None else [*calls, AssistantToolCall(message.function_call)]


def _content(message: ChatMessage, where: str) -> str:
    """The text of a message; where an assistant said nothing but that it refuses, that."""
    if isinstance(message.content, list):
        parts = enumerate(message.content)
        content = "".join(_text(part, message.role, f"{where}.content[{i}]") for i, part in parts)
    else:
        content = message.content or ""
    if not content and message.role == "assistant" and isinstance(message.refusal, str):
        return message.refusal
    return content


def _text(part: ContentPart, role: str, where: str) -> str:
    if part.type in TEXT_PARTS:
        return part.text or ""
    if part.type == REFUSAL_PART and role == "assistant":
        return part.refusal or ""
    refuse(
        f"{where}: {part.type!r} content is not supported; this model takes text",
        where,
        "unsupported_content",
    )


def _template_options(chat: ChatBody) -> str:
    return template_options(
        chat.chat_template_kwargs,
        enable_thinking=chat.enable_thinking,
        thinking=chat.thinking,
        effort=effort_of(chat.reasoning_effort, chat.reasoning),
        parallel_tool_calls=chat.parallel_tool_calls,
    )
