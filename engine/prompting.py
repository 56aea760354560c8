"""A request to tokens: render the template, tokenise, check the context. Runs on the intake thread."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

from .protocol import GenerateRequest, Message, SamplingParams
from .sampling import Sampler, resolve_sampling
from .sequence import Sequence, Stamps
from .templates import ChatTemplate, TemplateError
from .text_stream import TextStream
from .tokenise import Tokenizer

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
    turn begins at `turn_start`.
    """

    tokens: tuple[int, ...]
    stable: int = 0
    turn_start: int = 0


@dataclass(frozen=True, slots=True)
class Prompter:
    """Everything that turns a request into a sequence; immutable, so any thread may use it."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingParams
    context_length: int

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
        text = self._render(request, request.messages)
        marks = [self._end_of(request, text, count) for count in _boundaries(request.messages)]
        tokens, positions = self.tokenizer.encode_marked(text, marks)
        return Prompt(tuple(tokens), *positions)

    def _end_of(self, request: GenerateRequest, text: str, count: int) -> int:
        """Where the first `count` messages end in the rendered text; 0 when the template renders them otherwise
        alone."""
        if not count:
            return 0
        try:
            beginning = self._render(request, request.messages[:count], add_generation_prompt=False)
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
