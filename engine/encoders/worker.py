"""The worker of an encoder: the same two threads as `worker.Worker`, with texts instead of conversations.

    main thread     the engine loop, the only one that touches the runner
    intake thread   receives; tokenises and checks new requests while a step runs

Requests about conversations are refused, each with the answer that its asker waits for. A text is turned into tokens,
but not back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from ..messages.embedding import Embed, EmbeddingInput
from ..messages.sessions import (
    DeleteSession,
    ForkSession,
    ListSessions,
    SessionList,
    SessionRefused,
    TruncateSession,
)
from ..protocol import (
    Accepted,
    Cancel,
    CancelReason,
    Detokenize,
    FromWorker,
    Generate,
    ListPins,
    Pin,
    PinList,
    PinRefused,
    Rejected,
    Shutdown,
    Tokenize,
    Tokenized,
    TokensRefused,
    ToWorker,
    Unpin,
)
from ..worker_stats import StatsReporter
from .engine import EmbeddingEngine
from .model import LoadedEncoder
from .queue import EmbeddingJob

logger = logging.getLogger("agentserve.worker")
NOT_A_CHAT_MODEL = "this model makes embeddings; it can't generate text"

Emit = Callable[[FromWorker], None]


class EmbeddingIntake:
    """Turns requests into jobs, or refuses them; on the intake thread."""

    def __init__(self, model: LoadedEncoder) -> None:
        self._tokenizer = model.tokenizer
        self._context = model.info.context_length

    def job(self, request: Embed) -> EmbeddingJob | Rejected:
        """The job that a request is, or why it is refused."""
        arrived = time.monotonic()
        texts = []
        for index, given in enumerate(request.inputs):
            where = "input" if len(request.inputs) == 1 else f"input[{index}]"
            tokens = self._tokens(given)
            if unknown := [token for token in tokens if not 0 <= token < self._tokenizer.vocab_size]:
                return self._unknown_token(request.request_id, where, unknown[0])
            if len(tokens) > self._context and not request.truncate:
                return self._too_long(request.request_id, where, len(tokens))
            texts.append(self._tokenizer.cut(tokens, self._context))
        return EmbeddingJob(request.request_id, texts, arrived, time.monotonic() - arrived)

    def tokenized(self, question: Tokenize) -> Tokenized | TokensRefused:
        """The tokens of a text; conversations are refused."""
        text = question.request.prompt
        if not isinstance(text, str):
            return _no_tokens(question)
        tokens = self._tokenizer.encode(text, question.add_special)
        return Tokenized(question.request_id, tokens, self._tokenizer.pieces(tokens))

    def _tokens(self, given: EmbeddingInput) -> tuple[int, ...]:
        return self._tokenizer.encode(given) if isinstance(given, str) else self._tokenizer.framed(given)

    def _unknown_token(self, request_id: str, where: str, token: int) -> Rejected:
        size = self._tokenizer.vocab_size
        message = f"{where}: {token} is no token of this model, which has {size:,}; send text instead"
        return Rejected(request_id, 400, "invalid_value", message, where)

    def _too_long(self, request_id: str, where: str, tokens: int) -> Rejected:
        message = f"{where} has {tokens} tokens, the model takes {self._context}"
        return Rejected(
            request_id, 400, "context_length_exceeded", message, where, tokens, context_length=self._context
        )


class EmbeddingWorker:
    """Serves one loaded encoder until it is told to stop."""

    def __init__(self, connection: Connection, emit: Emit, model: LoadedEncoder) -> None:
        self._connection = connection
        self._emit = emit
        self._intake = EmbeddingIntake(model)
        self._engine = EmbeddingEngine(model.runner, model.cache_size, emit)
        self._work = threading.Event()
        self._stats = StatsReporter(self._engine.stats, emit)
        self._stopping = False

    def run(self) -> None:
        """The engine loop; returns after Shutdown."""
        threading.Thread(target=self._receive, name="intake", daemon=True).start()
        while not self._stopping:
            # Cleared before looking: what arrives in between sets it again.
            self._work.clear()
            is_busy = self._step()
            self._stats.report(idle=not is_busy)
            if not is_busy:
                self._work.wait()
        self._engine.cancel_all(CancelReason.SHUTDOWN)

    def _step(self) -> bool:
        try:
            return self._engine.step()
        except (RuntimeError, MemoryError):
            logger.exception("a step failed")
            self._engine.fail_step("embedding_failed", "the engine failed while it computed this request")
            return True

    def _receive(self) -> None:
        try:
            while True:
                self._take(self._connection.recv())
                self._work.set()
        except (EOFError, OSError):
            os._exit(1)
        except Exception:
            # A worker that hears nothing any more would keep its requests waiting for ever.
            logger.exception("the intake broke")
            os._exit(1)

    def _take(self, message: ToWorker) -> None:
        match message:
            case Embed():
                self._embed(message)
            case Tokenize():
                self._emit(self._intake.tokenized(message))
            case Cancel(request_id, reason):
                self._engine.cancel(request_id, reason)
            case Shutdown():
                self._stopping = True
            case _:
                self._emit(refusal(message))

    def _embed(self, request: Embed) -> None:
        job = self._intake.job(request)
        if isinstance(job, Rejected):
            self._emit(job)
            return
        position = self._engine.load
        self._emit(Accepted(job.request_id, job.tokens, 0, False, position, job.tokenize_s))
        self._engine.submit(job)


def refusal(message: ToWorker) -> FromWorker:
    """What a worker without conversations answers to everything about them."""
    match message:
        case Generate(request):
            return Rejected(request.request_id, 400, "invalid_chat_model", NOT_A_CHAT_MODEL, "model")
        case ListPins():
            return PinList(message.request_id, (), 0, 0, 0, 0)
        case Pin() | Unpin():
            return PinRefused(message.request_id, 400, "invalid_chat_model", NOT_A_CHAT_MODEL, "model")
        case Detokenize():
            return _no_tokens(message)
        case ListSessions():
            return SessionList(message.request_id, ())
        case ForkSession() | TruncateSession() | DeleteSession():
            return SessionRefused(message.request_id, 404, "session_not_found", "there is no such session")
        case _:
            raise AssertionError(f"a worker does not take {message}")


def _no_tokens(question: Tokenize | Detokenize) -> TokensRefused:
    return TokensRefused(question.request_id, 400, "invalid_chat_model", NOT_A_CHAT_MODEL, "model")
