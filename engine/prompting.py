"""A request to tokens: render the template, tokenise, check the context. Runs on the intake thread."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from .protocol import GenerateRequest, SamplingParams
from .sampling import Sampler, resolve_sampling
from .sequence import Sequence, Stamps
from .templates import ChatTemplate, TemplateError
from .text_stream import TextStream
from .tokenise import Tokenizer


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


@dataclass(frozen=True, slots=True)
class Prompter:
    """Everything that turns a request into a sequence; immutable, so any thread may use it."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingParams
    context_length: int

    def tokens(self, request: GenerateRequest) -> tuple[int, ...]:
        """The prompt's tokens. Raises PromptError when the template refuses the messages or nothing is left."""
        if request.messages:
            tokens = self.tokenizer.encode(self._render(request), add_special=False)
        elif isinstance(request.prompt, str):
            tokens = self.tokenizer.encode(request.prompt, add_special=True)
        else:
            tokens = list(request.prompt or ())
        if not tokens:
            raise PromptError(400, "empty_prompt", "the prompt has no tokens", "prompt")
        return tuple(tokens)

    def _render(self, request: GenerateRequest) -> str:
        if self.template is None:
            raise PromptError(400, "no_chat_template", "this model has no chat template", "messages")
        try:
            return self.template.render(
                request.messages, tools_json=request.tools_json, options_json=request.template_options_json
            )
        except TemplateError as error:
            raise PromptError(400, "template_error", str(error), "messages") from error

    def sequence(self, request: GenerateRequest, tokens: tuple[int, ...], stamps: Stamps) -> Sequence:
        """A sequence whose output limit fits the context. Raises PromptError when not one token fits."""
        if "" in request.stop:
            raise PromptError(400, "invalid_value", "a stop string is empty", "stop")
        room = self.context_length - len(tokens)
        if room < 1:
            raise PromptError(
                400,
                "context_length_exceeded",
                f"the prompt has {len(tokens)} tokens, the context {self.context_length}",
                "messages" if request.messages else "prompt",
                len(tokens),
            )
        sampling = resolve_sampling(request.sampling, self.defaults, secrets.randbits(63))
        return Sequence(
            request_id=request.request_id,
            prompt=tokens,
            max_new_tokens=room if request.max_new_tokens is None else min(request.max_new_tokens, room),
            sampler=Sampler(sampling, tokens),
            text=TextStream(self.tokenizer, request.stop),
            stamps=stamps,
        )
