"""A request to tokens: render the template, tokenise, check the context. Runs on the intake thread."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

from ..config import DraftLimits
from ..constraints.desk import Constraints
from ..constraints.errors import ConstraintError
from ..constraints.state import Grammar
from ..prefix.differences import Explainer
from ..protocol import GenerateRequest, Message, SamplingParams
from ..replies.formats import ReplyFormats
from ..replies.logprobs import LogprobTrail
from ..replies.memory import ReplyMemory
from ..replies.sampling import Sampler, resolve_sampling
from ..scheduling.scheduler import lane_of
from ..sequence import Sequence, Stamps
from ..text.tokenise import Tokenizer
from .decorations import Decorations
from .fill_in_middle import gap_tokens
from .json_calls import canonical
from .strict_turns import arrangements
from .templates import ChatTemplate, OptionError, TemplateError, TemplateRefusal
from .transcripts import Origin, encode_transcript

Messages = Items[Message]


class PromptError(Exception):
    """The request can't be served as it is; `status` is an HTTP status, `param` the field at fault.

    `limit` is how many prompt tokens would have been taken, where that is less than the context. After
    `retry_after_s` seconds the same request may be taken.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        prompt_tokens: int | None = None,
        *,
        limit: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.retry_after_s = retry_after_s


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
    draft_limits: DraftLimits = field(default_factory=DraftLimits)
    formats: ReplyFormats = field(default_factory=ReplyFormats)
    constraints: Constraints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraints", Constraints(self.tokenizer, self.formats))

    def prompt(self, request: GenerateRequest) -> Prompt:
        """The prompt's tokens. Raises PromptError when the template refuses the messages or nothing is left."""
        if request.messages:
            prompt = self._chat(request)
        elif request.suffix is not None:
            prompt = Prompt(self._gap(request, request.suffix))
        elif isinstance(request.prompt, str):
            prompt = Prompt(tuple(self.tokenizer.encode(request.prompt, add_special=True)))
        else:
            prompt = Prompt(tuple(request.prompt or ()))
            check_tokens(prompt.tokens, self.tokenizer.vocab_size, "prompt")
        if not prompt.tokens:
            raise PromptError(400, "empty_prompt", "the prompt has no tokens", "prompt")
        return prompt

    def _gap(self, request: GenerateRequest, suffix: str) -> tuple[int, ...]:
        """The tokens that ask for what stands between prompt and suffix."""
        before = request.prompt or ""
        prefix = self.tokenizer.encode(before) if isinstance(before, str) else before
        check_tokens(prefix, self.tokenizer.vocab_size, "prompt")
        tokens = gap_tokens(self.tokenizer, prefix, self.tokenizer.encode(suffix))
        if tokens is None:
            message = "suffix: this model's vocabulary has no tokens to fill in a gap with"
            raise PromptError(400, "unsupported_parameter", message, "suffix")
        return tokens

    def spelled(self, request: GenerateRequest) -> str:
        """The text of a bare prompt; control tokens are spelled out."""
        prompt = request.prompt or ""
        if isinstance(prompt, str):
            return prompt
        return b"".join(map(self.tokenizer.spelling, prompt)).decode("utf-8", "replace")

    def text(self, request: GenerateRequest) -> str:
        """What the template makes of the messages. Raises PromptError when it refuses them."""
        return self._render(request, self.decorations.strip(request.messages))

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
            return self._rendered(self.template, request, messages, add_generation_prompt)
        except TemplateError as error:
            param = "chat_template_kwargs" if isinstance(error, OptionError) else "messages"
            raise PromptError(400, "template_error", str(error), param) from error

    def _rendered(
        self,
        template: ChatTemplate,
        request: GenerateRequest,
        messages: Messages,
        add_generation_prompt: bool,
    ) -> str:
        """The text of the first arrangement that the template takes. Raises TemplateError for the messages as they are."""
        refused: TemplateRefusal | None = None
        for arranged in arrangements(messages):
            try:
                return template.render(
                    arranged, request.tools_json, request.template_options_json, add_generation_prompt
                )
            except TemplateRefusal as refusal:
                refused = refused or refusal
        assert refused is not None, "the messages as they are were tried"
        raise refused

    def sequence(self, request: GenerateRequest, prompt: Prompt, stamps: Stamps) -> Sequence:
        """A sequence whose output limit fits the context.

        Raises PromptError when not one token fits, or the reply can't be what the request wants it to be.
        """
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
        _check_biases(sampling.logit_bias, self.tokenizer.vocab_size)
        return Sequence(
            request_id=request.request_id,
            namespace=request.namespace,
            # A conversation goes on with the first answer.
            session_id=None if request.choice else request.session_id,
            lane=lane_of(request),
            deadline=None if request.timeout_s is None else stamps.arrived + request.timeout_s,
            prompt=prompt.tokens,
            stable=prompt.stable,
            turn_start=prompt.turn_start,
            canonical=prompt.canonical,
            origin=prompt.origin,
            max_new_tokens=room if request.max_new_tokens is None else min(request.max_new_tokens, room),
            sampler=Sampler(sampling, prompt.tokens, self._grammar(request, prompt)),
            text=self.formats.reader(self.tokenizer, request, prompt.tokens),
            stamps=stamps,
            draft_limit=self.draft_limits.limit(request.draft_tokens),
            explain=Explainer(self.tokenizer) if request.explain else None,
            logprobs=self._logprobs(request),
            choice=request.choice,
        )

    def _grammar(self, request: GenerateRequest, prompt: Prompt) -> Grammar | None:
        try:
            return self.constraints.grammar(request, prompt.tokens)
        except ConstraintError as error:
            raise PromptError(400, error.code, error.message, error.param) from error

    def _logprobs(self, request: GenerateRequest) -> LogprobTrail | None:
        if request.logprobs is None:
            return None
        return LogprobTrail(self.tokenizer, request.stop, request.logprobs)


def check_tokens(tokens: Items[int], size: int, param: str) -> None:
    """Raises PromptError for a token that the vocabulary of this size has not."""
    unknown = next((token for token in tokens if not 0 <= token < size), None)
    if unknown is not None:
        message = f"{param}: there is no token {unknown}; this model's are 0 to {size - 1}"
        raise PromptError(400, "invalid_value", message, param)


def _check_biases(biases: Items[tuple[int, float]], size: int) -> None:
    """Raises PromptError for a token that the vocabulary of this size has not."""
    unknown = next((token for token, _ in biases if not 0 <= token < size), None)
    if unknown is not None:
        raise PromptError(
            400,
            "invalid_value",
            f"logit_bias: there is no token {unknown}; this model's are 0 to {size - 1}",
            "logit_bias",
        )


def _boundaries(messages: Messages) -> tuple[int, int]:
    """How many messages the system part has, and how many stand before the last user message."""
    roles = [message.role for message in messages]
    system = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    last_user = max((i for i, role in enumerate(roles) if role == "user"), default=0)
    return system, last_user
