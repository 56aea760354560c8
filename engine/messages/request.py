"""What a client asks a model for, free of any wire dialect; `protocol` has it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .constraint import Constraint
from .pins import PrefixPin


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant message of the history made; `arguments` is a JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation after a dialect normalised it; `content` is None only beside tool calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. None means the model's own default, then the engine's.

    temperature 0 is greedy. top_k 0 and top_p 1.0 are off. Repetition penalty 1.0 is off and divides the
    logits of tokens in prompt and output; presence and frequency penalties are subtracted for output tokens.
    `logit_bias` are ids of tokens, each once, and what is added to their logits.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request free of any wire dialect. Exactly one of `messages` and `prompt` is given.

    `prompt` is text or token ids, taken as they are. `tools_json` and `template_options_json` are JSON texts
    (a list, an object) handed to the chat template. With tools the reply is searched for calls, and ends with the first
    one unless `parallel_tool_calls`. It must call one of `required_tools`, unless there are none; else the answer is held
    to `constraint`. With `logprobs` each token is told how likely it was, and so many of the likeliest of its place.
    `max_new_tokens` None means up to the context. Nothing is reused across namespaces. `session_id` names a conversation to continue or start. After `timeout_s` seconds in the
    worker the request is cancelled (DEADLINE); None is never. At most `draft_tokens` are drafted in a step; 0 is no
    speculation, None the worker's default. `explain` asks for the texts where the prompt parts
    from what is known, in Started. A request with a `choice` above 0 is a further answer to the prompt that was sent
    before it: the two share a lane and need not wait for each other, and the session goes on with choice 0. With `suffix` the reply to a bare prompt is what stands between the two. `echo` asks
    for the text of a bare prompt, in Accepted.
    """

    request_id: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools_json: str | None = None
    template_options_json: str = "{}"
    parallel_tool_calls: bool = True
    required_tools: tuple[str, ...] = ()
    constraint: Constraint | None = None
    logprobs: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    namespace: str = ""
    session_id: str | None = None
    timeout_s: float | None = None
    pin: PrefixPin | None = None
    draft_tokens: int | None = None
    explain: bool = False
    choice: int = 0
    suffix: str | None = None
    echo: bool = False
