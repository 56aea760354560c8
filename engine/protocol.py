"""Every message that crosses between the daemon and a worker process.

Frozen dataclasses of the standard library only: this is the one engine module that the daemon imports.
Messages travel pickled over one duplex pipe, so both sides always run the same version of this file.

    daemon → worker   LoadModel (first, once), Generate, Pin, Unpin, ListPins, Cancel, Shutdown
    worker → daemon   LoadProgress*, then Ready or LoadFailed; per request either Rejected, or
                      Accepted, Started, TextDelta*, and one of Finished, Failed; WorkerStats at any time;
                      for Pin one of PinDone, PinRefused, Finished (cancelled), Failed; for Unpin one of
                      Unpinned, PinRefused; for ListPins PinList

A request is named by its `request_id` in both directions. All times are seconds, all sizes bytes or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from .pin_protocol import ListPins, PinAnswer, PinDone, PinInfo, PinList, PinRefused, PinTier, Unpin, Unpinned

# What comes from another file; all that is defined here is public too.
__all__ = [
    "ListPins",
    "PinAnswer",
    "PinDone",
    "PinInfo",
    "PinList",
    "PinRefused",
    "PinTier",
    "Unpin",
    "Unpinned",
]

FinishReason = Literal["stop", "length", "cancelled"]
MissReason = Literal[
    "cold",
    "diverged",
    "diverged_at_start",
    "too_short",
    "no_checkpoint",
    "evicted",
    "fingerprint_mismatch",
    "capsule_damaged",
]
Minima = Literal["kept", "balanced", "rounded"]
PrefixAction = Literal["exact", "append", "message_append", "restore", "truncate", "fork", "rebuild"]


class CancelReason(Enum):
    """Who asked for the end of a request."""

    CLIENT = "client_disconnected"
    API = "cancelled_by_id"
    DEADLINE = "deadline"
    SLOW_READER = "slow_reader"
    SHUTDOWN = "shutdown"


class LoadStage(Enum):
    """What a worker is doing until it is ready, in this order; the text is shown to people."""

    READING = "reading the model file"
    BUILDING = "building the graph"
    COMPILING = "compiling"
    SELF_TEST = "running the self-test"


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
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request free of any wire dialect. Exactly one of `messages` and `prompt` is given.

    `prompt` is text or token ids, taken as they are. `tools_json` and `template_options_json` are JSON texts
    (a list, an object) handed to the chat template. `max_new_tokens` None means up to the context. Nothing is
    reused across namespaces. `session_id` names a conversation to continue or start.
    """

    request_id: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools_json: str | None = None
    template_options_json: str = "{}"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    namespace: str = ""
    session_id: str | None = None


# ---- daemon → worker


@dataclass(frozen=True, slots=True)
class LoadModel:
    """What the worker serves, sent once. `model_path` None selects the built-in reference model (device mock).

    `model_digest` is the store's SHA-256 of the file ("" makes the engine compute it).
    `threads` 0 and `kv_budget_bytes` 0 let the engine choose; `max_context` 0 is the model's own.
    `minima` says in which weights the minima of Q4_1 and Q4_K are kept (see `graph_weights.rounds_minima`).
    Pins hold at most `capsule_budget_bytes` of the KV cache, and at most half of it; 0 allows no pins. Capsules are
    kept below `capsule_dir` (None keeps none on disk), at most `capsule_disk_bytes` for this model.
    `strip_decorations` drops lines of clients that change every session from the beginning of system texts.
    `reference_step_s` slows each step of the reference model, for tests of queues and cancellation.
    """

    name: str
    model_path: str | None
    model_digest: str = ""
    device: str = "CPU"
    threads: int = 0
    max_context: int = 0
    kv_budget_bytes: int = 0
    exact: bool = False
    minima: Minima = "balanced"
    compile_cache_dir: str | None = None
    strip_decorations: bool = True
    reference_step_s: float = 0.0
    capsule_budget_bytes: int = 2 << 30
    capsule_dir: str | None = None
    capsule_disk_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class Generate:
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class Pin:
    """Makes a prefix stay under a name; a pin of that name is replaced. Answered by PinDone or PinRefused.

    The tokens are those of `request` (its sampling and limits mean nothing), or the prompt of the recent request
    `from_request`, or, without both, the stable prefix of the namespace's last request. At most the first
    `tokens` of them, in whole blocks. The pin expires after `ttl_s` seconds; None is never.
    """

    request_id: str
    name: str
    namespace: str = ""
    request: GenerateRequest | None = None
    from_request: str | None = None
    tokens: int | None = None
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends the worker after the running step; unfinished requests are Finished as cancelled."""


PinCommand = Pin | Unpin | ListPins
ToWorker = LoadModel | Generate | PinCommand | Cancel | Shutdown


# ---- worker → daemon


@dataclass(frozen=True, slots=True)
class LoadProgress:
    stage: LoadStage


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What the load-time self-test found: do logits depend on the number of rows, on replay, on rollback?"""

    rows_agree: bool
    replay_agrees: bool
    rollback_agrees: bool
    seconds: float

    @property
    def passed(self) -> bool:
        return self.rows_agree and self.replay_agrees and self.rollback_agrees


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model: what it is, what it costs, what it can do."""

    name: str
    architecture: str
    device: str
    context_length: int
    vocab_size: int
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_budget_bytes: int
    block_tokens: int
    exact: bool
    fingerprint: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    model: ModelInfo
    self_test: SelfTest
    load_s: float
    compile_cache_hit: bool


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The worker can't serve; it exits after this. `code` is `corrupt_model`, `unsupported_model`,
    `out_of_memory` or `load_failed`; `message` is fit for a person and names no path."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused before any work, state unchanged. `status` is the HTTP status, `param` the field at fault."""

    request_id: str
    status: int
    code: str
    message: str
    param: str | None = None
    prompt_tokens: int | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Rendered, tokenised, fits: the request is queued. `max_new_tokens` is the limit after clipping."""

    request_id: str
    prompt_tokens: int
    max_new_tokens: int
    clipped: bool
    queue_position: int
    tokenize_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """The engine took the request up: the prefix is planned and prefill begins.

    `first_difference` is the position of the first prompt token that parts it from the nearest known text.
    `session_id` names the conversation that the request continues or starts.
    """

    request_id: str
    prefix_action: PrefixAction
    cached_tokens: int
    cache_miss_reason: MissReason | None
    first_difference: int | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became certain, from `tokens` newly accepted tokens (0 when held-back text is released)."""

    request_id: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one request went, in seconds; `first_token_s` counts from the arrival in the worker."""

    queued_s: float
    tokenize_s: float
    prefill_s: float
    first_token_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The one good end. completion_tokens counts a sampled end-of-turn token too; prompt_tokens counts all.

    `stop_string` is the one that matched, `cancel_reason` is set when finish_reason is `cancelled`.
    """

    request_id: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timings: Timings
    stop_string: str | None = None
    cancel_reason: CancelReason | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not go on with this request; others are not touched."""

    request_id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Counters and gauges of the worker, sent when they changed and at most a few times a second."""

    rss_bytes: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    sessions: int
    requests_running: int
    requests_queued: int
    tokens_prefilled: int
    tokens_reused: int
    tokens_generated: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


RequestEvent = Rejected | Accepted | Started | TextDelta | Finished | Failed | PinAnswer
FromWorker = LoadProgress | Ready | LoadFailed | RequestEvent | WorkerStats
