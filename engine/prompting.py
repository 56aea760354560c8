"""A request to tokens: render the template, tokenise, check the context. Runs on the intake thread."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

from .decorations import Decorations
from .json_calls import canonical
from .protocol import GenerateRequest, Message, SamplingParams
from .reply_memory import ReplyMemory
from .sampling import Sampler, resolve_sampling
from .sequence import Sequence, Stamps
from .templates import ChatTemplate, TemplateError
from .text_stream import TextStream
from .tokenise import Tokenizer
from .transcripts import Origin, encode_transcript

Messages = Items[Message]


class PromptError(Exception):
    """The request can't be served as it is; `status` is an HTTP status, `param` the field at fault."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, prompt_tokens: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.prompt_tokens = prompt_tokens


class Prompt(NamedTuple):
    """Tokens, and where parts of the conversation end in them.

    `stable` tokens are the system text and the tools, which the next sessions of a client share. The last user
    turn begins at `turn_start`. From token `canonical` on they may differ from what tokenising the text would give,
    since replies of this worker keep their own tokens; None when nothing differs. `origin` is where the reply to a
    conversation will be remembered.
    """

    tokens: tuple[int, ...]
    stable: int = 0
    turn_start: int = 0
    canonical: int | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Prompter:
    """Everything that turns a request into a sequence; any thread may use it."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingParams
    context_length: int
    decorations: Decorations = field(default_factory=Decorations)
    replies: ReplyMemory = field(default_factory=ReplyMemory)

    def prompt(self, request: GenerateRequest) -> Prompt:
        """The prompt's tokens. Raises PromptError when the template refuses the messages or nothing is left."""
        if request.messages:
            prompt = self._chat(request)
        elif isinstance(request.prompt, str):
            prompt = Prompt(tuple(self.tokenizer.encode(request.prompt, add_special=True)))
        else:
            prompt = Prompt(tuple(request.prompt or ()))
        if not prompt.tokens:
            raise PromptError(400, "empty_prompt", "the prompt has no tokens", "prompt")
        return prompt

    def _chat(self, request: GenerateRequest) -> Prompt:
        messages = self.decorations.strip(request.messages)
        text = self._render(request, messages)
        marks = [self._end_of(request, text, messages[:count]) for count in _boundaries(messages)]
        arguments = frozenset(canonical(call.arguments) for m in messages for call in m.tool_calls)
        found = encode_transcript(self.tokenizer, self.replies, request.namespace, text, marks, arguments)
        differs_from = found.canonical if found.canonical < len(found.tokens) else None
        stable, turn_start = found.positions
        return Prompt(found.tokens, stable, turn_start, differs_from, found.origin)

    def _end_of(self, request: GenerateRequest, text: str, messages: Messages) -> int:
        """Where the first messages end in the rendered text; 0 when the template renders them otherwise alone."""
        if not messages:
            return 0
        try:
            beginning = self._render(request, messages, add_generation_prompt=False)
        except PromptError:
            # Some templates demand a user message.
            return 0
        return len(beginning) if text.startswith(beginning) else 0

    def _render(
        self, request: GenerateRequest, messages: Messages, add_generation_prompt: bool = True
    ) -> str:
        if self.template is None:
            raise PromptError(400, "no_chat_template", "this model has no chat template", "messages")
        try:
            return self.template.render(
                messages, request.tools_json, request.template_options_json, add_generation_prompt
            )
        except TemplateError as error:
            raise PromptError(400, "template_error", str(error), "messages") from error

    def sequence(self, request: GenerateRequest, prompt: Prompt, stamps: Stamps) -> Sequence:
        """A sequence whose output limit fits the context. Raises PromptError when not one token fits."""
        if "" in request.stop:
            raise PromptError(400, "invalid_value", "a stop string is empty", "stop")
        count = len(prompt.tokens)
        room = self.context_length - count
        if room < 1:
            raise PromptError(
                400,
                "context_length_exceeded",
                f"the prompt has {count} tokens, the context {self.context_length}",
                "messages" if request.messages else "prompt",
                count,
            )
        sampling = resolve_sampling(request.sampling, self.defaults, secrets.randbits(63))
        return Sequence(
            request_id=request.request_id,
            namespace=request.namespace,
            session_id=request.session_id,
            prompt=prompt.tokens,
            stable=prompt.stable,
            turn_start=prompt.turn_start,
            canonical=prompt.canonical,
            origin=prompt.origin,
            max_new_tokens=room if request.max_new_tokens is None else min(request.max_new_tokens, room),
            sampler=Sampler(sampling, prompt.tokens),
            text=TextStream(self.tokenizer, request.stop),
            stamps=stamps,
        )


def _boundaries(messages: Messages) -> tuple[int, int]:
    """How many messages the system part has, and how many stand before the last user message."""
    roles = [message.role for message in messages]
    system = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    last_user = max((i for i, role in enumerate(roles) if role == "user"), default=0)
    return system, last_user
