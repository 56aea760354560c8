"""Every message that crosses between the daemon and a worker process.

Frozen dataclasses of the standard library only: of the engine the daemon imports this and `messages.sessions` alone.
Messages travel pickled over one duplex pipe, so both sides always run the same version of this file.

    daemon → worker   LoadModel (first, once), Generate, Embed (see `messages.embedding`), Pin, Unpin, ListPins,
                      commands of `messages.sessions`, questions of `messages.tokens`, Cancel, Shutdown
    worker → daemon   LoadProgress*, then Ready or LoadFailed; per request either Rejected, or
                      Accepted, Started, Delta* and LogprobsDelta*, and one of Finished, Failed; WorkerStats at any time;
                      for Pin one of PinDone, PinRefused, Finished (cancelled), Failed; for Unpin one of
                      Unpinned, PinRefused; for ListPins PinList; for commands about sessions one of
                      SessionList, SessionDone, SessionRefused; for questions of `messages.tokens` what that says

A request is named by its `request_id` in both directions. All times are seconds, all sizes bytes or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from .messages.constraint import Constraint
from .messages.drafts import DrafterCounts, DraftModelFile, DraftModelInfo, DraftStats
from .messages.embedding import Embed, Embedded, EmbeddingInput
from .messages.logprobs import MOST_TOP_LOGPROBS, LogprobsDelta, TokenLogprob
from .messages.pins import (
    ListPins,
    PinAnswer,
    PinDone,
    PinInfo,
    PinList,
    PinRefused,
    PinTier,
    PrefixPin,
    PrefixPinned,
    Unpin,
    Unpinned,
)
from .messages.prefix import MissReason, PrefixAction, TextDifference, TierBytes
from .messages.reply import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from .messages.request import GenerateRequest, Message, SamplingParams, ToolCall
from .messages.sessions import SessionAnswer, SessionCommand
from .messages.stats import RequestProgress, WorkerStats
from .messages.tokens import (
    Detokenize,
    Detokenized,
    TokenAnswer,
    TokenCommand,
    Tokenize,
    Tokenized,
    TokensRefused,
)

# What comes from another file; all that is defined here is public too.
__all__ = [
    "MOST_TOP_LOGPROBS",
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "Constraint",
    "Delta",
    "Detokenize",
    "Detokenized",
    "DraftModelFile",
    "DraftModelInfo",
    "DraftStats",
    "DrafterCounts",
    "Embed",
    "Embedded",
    "EmbeddingInput",
    "GenerateRequest",
    "ListPins",
    "LogprobsDelta",
    "Message",
    "MissReason",
    "PinAnswer",
    "PinDone",
    "PinInfo",
    "PinList",
    "PinRefused",
    "PinTier",
    "PrefixAction",
    "PrefixPin",
    "PrefixPinned",
    "ReasoningDelta",
    "RequestProgress",
    "SamplingParams",
    "SessionAnswer",
    "SessionCommand",
    "TextDelta",
    "TextDifference",
    "TierBytes",
    "TokenAnswer",
    "TokenCommand",
    "TokenLogprob",
    "Tokenize",
    "Tokenized",
    "TokensRefused",
    "ToolCall",
    "ToolCallDelta",
    "Unpin",
    "Unpinned",
    "WorkerStats",
]

FinishReason = Literal["stop", "tool_calls", "length", "cancelled"]
Minima = Literal["kept", "balanced", "rounded"]


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


# ---- daemon → worker


@dataclass(frozen=True, slots=True)
class LoadModel:
    """What the worker serves, sent once. `model_path` None selects the built-in reference model (device mock).

    `model_digest` is the store's SHA-256 of the file ("" makes the engine compute it).
    `threads` 0 and `kv_budget_bytes` 0 let the engine choose; `max_context` 0 is the model's own.
    `minima` says in which weights the minima of Q4_1 and Q4_K are kept (see `graph_weights.rounds_minima`).
    Pins hold at most `capsule_budget_bytes` of the KV cache, and at most half of it; 0 allows no pins. Capsules are
    kept in the folder `capsule_dir`, which no other worker may have (None keeps none on disk), at most
    `capsule_disk_bytes`.
    `strip_decorations` drops lines of clients that change every session from the beginning of system texts.
    `max_sessions` requests may share the engine; further ones wait. `max_prompt_tokens` and `max_output_tokens` 0 are
    the context's own. `queue_wait_s` is for how long prompts may be queued up, by the measured rate; 0 is for ever.
    A conversation that is not continued for `session_idle_s` seconds loses its name; 0 is never.
    A request that says nothing drafts up to `draft_tokens` a step, and none more than `max_draft_tokens`; 0 turns
    speculation off. `draft_model` drafts too (docs/speculation.md).
    `tool_format` and `reasoning_format` name how the model writes tool calls (docs/tool-calls.md) and marks its
    reasoning; `auto` finds that out from its template and `none` is not to look for them.
    An encoder remembers at most `embedding_cache_size` vectors.
    `reference_step_s` slows each step of the reference model, for tests of queues and cancellation, but not where it
    drafts.
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
    max_sessions: int = 8
    max_prompt_tokens: int = 0
    max_output_tokens: int = 0
    queue_wait_s: float = 0.0
    session_idle_s: float = 0.0
    draft_tokens: int = 0
    max_draft_tokens: int = 0
    draft_model: DraftModelFile | None = None
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    embedding_cache_size: int = 1024


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
ToWorker = LoadModel | Generate | Embed | PinCommand | SessionCommand | TokenCommand | Cancel | Shutdown


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
    """A loaded model: what it is, what it costs, what it can do. A step drafts at most `draft_tokens`, 0 for none.
    `draft_model` is the one that drafts for it, if any; its costs are not counted in the others.

    `tool_format` and `reasoning_format` are how it writes calls and reasoning; None when it was taught neither. `dimensions`
    are those of its vectors if it makes embeddings, 0 if it generates text.
    """

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
    draft_tokens: int = 0
    draft_model: DraftModelInfo | None = None
    tool_format: str | None = None
    reasoning_format: str | None = None
    dimensions: int = 0

    @property
    def speculative(self) -> bool:
        return self.draft_tokens > 0


@dataclass(frozen=True, slots=True)
class Ready:
    model: ModelInfo
    self_test: SelfTest
    load_s: float
    compile_cache_hit: bool


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The worker can't serve; it exits after this. `code` is `corrupt_model`, `unsupported_model`,
    `out_of_memory`, `invalid_draft_model` or `load_failed`; `message` is fit for a person and names no path."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused before any work, state unchanged. `status` is the HTTP status, `param` the field at fault.

    `retry_after_s` is set where asking again may help: by the measured rates, there will be room then. A pin over the
    budget says how many bytes were wanted and free.
    """

    request_id: str
    status: int
    code: str
    message: str
    param: str | None = None
    prompt_tokens: int | None = None
    context_length: int | None = None
    retry_after_s: float | None = None
    wanted_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Rendered, tokenised, fits: the request is queued. `max_new_tokens` and `draft_tokens` are the limits in force.

    `prompt_text` is what a request with `echo` asks for.
    """

    request_id: str
    prompt_tokens: int
    max_new_tokens: int
    clipped: bool
    queue_position: int
    tokenize_s: float
    draft_tokens: int = 0
    prompt_text: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The engine took the request up: the prefix is planned and prefill begins.

    `first_difference` is the position of the first prompt token that parts it from the nearest known text.
    `session_id` names the conversation that the request continues or starts. `difference` is set for requests that
    ask to `explain` a difference.
    """

    request_id: str
    prefix_action: PrefixAction
    cached_tokens: int
    cache_miss_reason: MissReason | None
    first_difference: int | None = None
    session_id: str | None = None
    difference: TextDifference | None = None


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

    `stop_string` is the one that matched, `cancel_reason` is set when finish_reason is `cancelled`. `pin` says what
    became of the request's own pin, `drafts` what of its drafts.
    """

    request_id: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timings: Timings
    stop_string: str | None = None
    cancel_reason: CancelReason | None = None
    pin: PrefixPinned | None = None
    drafts: DraftStats = field(default_factory=DraftStats)


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not go on with this request; others are not touched."""

    request_id: str
    code: str
    message: str


Content = Delta | LogprobsDelta | Embedded
RequestEvent = (
    Rejected | Accepted | Started | Content | Finished | Failed | PinAnswer | SessionAnswer | TokenAnswer
)
FromWorker = LoadProgress | Ready | LoadFailed | RequestEvent | WorkerStats
