"""The worker process: `python -P -m agentserve.engine.worker FD`, FD being one end of a duplex socket.

    main thread     the engine loop, the only one that touches runner, pool and sessions
    intake thread   receives; renders, tokenises and checks new requests while a step runs
    sender thread   pickles and writes events, so that the loop is back in the next step meanwhile

A closed pipe means that the daemon is gone: the process ends at once, even inside a native call.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from queue import SimpleQueue

from .constraints.state import BrokenConstraint
from .encoders.model import LoadedEncoder
from .encoders.source import holds_encoder
from .encoders.worker import EmbeddingWorker
from .engine import Engine
from .loading import LoadedModel, load
from .messages.sessions import DeleteSession, ForkSession, ListSessions, TruncateSession
from .model_errors import LoadError, ModelFileError
from .prefix.pinning import PinIntake
from .prefix.pins import plan_pin
from .prompts.prompting import Prompt, PromptError
from .prompts.token_questions import answer
from .protocol import (
    Accepted,
    Cancel,
    CancelReason,
    Detokenize,
    Embed,
    Failed,
    FromWorker,
    Generate,
    GenerateRequest,
    ListPins,
    LoadFailed,
    LoadModel,
    LoadProgress,
    Pin,
    PinRefused,
    Ready,
    Rejected,
    Shutdown,
    TokenAnswer,
    TokenCommand,
    Tokenize,
    Unpin,
)
from .replies.recall import recall_replies, recent_conversations
from .runners.backend import Progress
from .runners.memory import give_back_large_buffers
from .sequence import Sequence, Stamps
from .worker_stats import StatsReporter, engine_stats

logger = logging.getLogger("agentserve.worker")
# While nothing is asked for, a part of the books is checked this often.
_BETWEEN_CHECKS_S = 0.05
# What native libraries and templates throw. Anything else is a bug of ours, and ends the process.
_MISHAPS = (RuntimeError, MemoryError, ValueError)


class Outbox:
    """Events on their way to the daemon. `put` never blocks; one thread writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._events: SimpleQueue[FromWorker | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="sender", daemon=True)
        self._thread.start()

    def put(self, event: FromWorker) -> None:
        self._events.put(event)

    def close(self) -> None:
        """Writes what is left, then stops."""
        self._events.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._connection.send(event)
            except OSError:
                os._exit(1)


class Worker:
    """Serves one loaded model until it is told to stop."""

    def __init__(self, connection: Connection, outbox: Outbox, model: LoadedModel) -> None:
        self._connection = connection
        self._outbox = outbox
        self._model = model
        self._work = threading.Event()
        stops = model.prompter.tokenizer.eos_ids
        cache = model.block_cache()
        capsules = model.capsule_store(cache, self._work.set)
        self._engine = Engine(
            model.runner, model.config, stops, cache, outbox.put, capsules, model.draft_model()
        )
        self._pins = PinIntake(model.prompter, model.info.block_tokens)
        self._stored = recent_conversations(capsules.disk) if capsules.disk is not None else []
        self._stats = StatsReporter(lambda: engine_stats(self._engine), outbox.put)
        self._stopping = False

    def run(self) -> None:
        """The engine loop; returns after Shutdown."""
        threading.Thread(target=self._receive, name="intake", daemon=True).start()
        while not self._stopping:
            # Cleared before looking: what arrives in between sets it again.
            self._work.clear()
            if self._step():
                self._stats.report()
            else:
                self._stats.report(idle=True)
                is_more = self._engine.integrity.part()
                # The intake thread needs the interpreter too: parts of the check keep a distance.
                self._work.wait(_BETWEEN_CHECKS_S if is_more else None)
        self._engine.cancel_all(CancelReason.SHUTDOWN)
        self._engine.capsules.close()
        self._engine.speculation.save()

    def _step(self) -> bool:
        try:
            return self._engine.step()
        except BrokenConstraint as error:
            self._engine.fail_current("constraint_failed", str(error))
            self._model.prompter.constraints.forget()
            return True
        except _MISHAPS:
            # What a native library throws ends the request that met it, not the worker.
            message = "the engine failed while it computed this request"
            if not self._engine.fail_current("internal_error", message):
                raise
            logger.exception("a step failed")
            return True

    def _receive(self) -> None:
        try:
            self._intake()
        except Exception:
            # A worker that hears nothing any more would keep its requests waiting for ever.
            logger.exception("the intake broke")
            os._exit(1)

    def _intake(self) -> None:
        prompter = self._model.prompter
        for namespace, tokens in self._stored:
            recall_replies(prompter.tokenizer, prompter.replies, namespace, tokens)
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            match message:
                case Generate(request):
                    self._take(request)
                case Embed():
                    self._outbox.put(_no_embeddings(message))
                case Pin():
                    self._pin(message)
                case Unpin() | ListPins():
                    self._engine.ask(message)
                case ListSessions() | ForkSession() | TruncateSession() | DeleteSession():
                    self._engine.ask(message)
                case Tokenize() | Detokenize():
                    self._outbox.put(self._answer(message))
                case Cancel(request_id, reason):
                    self._engine.cancel(request_id, reason)
                case Shutdown():
                    self._stopping = True
            self._work.set()

    def _answer(self, question: TokenCommand) -> TokenAnswer | Failed:
        try:
            return answer(self._model.prompter, question)
        except _MISHAPS:
            logger.exception("a question about tokens could not be answered")
            message = "the engine failed while it read this request"
            return Failed(question.request_id, "internal_error", message)

    def _take(self, request: GenerateRequest) -> None:
        """Answers Accepted or Rejected; what is accepted goes to the engine."""
        stamps = Stamps(time.monotonic())
        try:
            prompt, sequence = self._understand(request, stamps)
        except PromptError as error:
            context_length = self._model.prompter.context_length
            self._outbox.put(_rejected(request.request_id, error, context_length))
            return
        except _MISHAPS:
            logger.exception("a prompt could not be made")
            message = "the engine failed while it read this request"
            self._outbox.put(Failed(request.request_id, "internal_error", message))
            return
        stamps.tokenize_s = time.monotonic() - stamps.arrived
        self._pins.recent.remember(request.request_id, request.namespace, prompt)
        asked = request.max_new_tokens
        accepted = Accepted(
            request_id=request.request_id,
            prompt_tokens=len(prompt.tokens),
            max_new_tokens=sequence.max_new_tokens,
            clipped=asked is not None and asked > sequence.max_new_tokens,
            queue_position=self._engine.load,
            tokenize_s=stamps.tokenize_s,
            draft_tokens=sequence.draft_limit,
            prompt_text=self._model.prompter.spelled(request) if request.echo else None,
        )
        if request.pin is not None:
            plan_pin(sequence, request.pin, self._model.info.block_tokens)
        if sequence.prefix_pin is not None:
            # Whether its pin has room is known on the engine thread alone.
            sequence.admission = accepted
        else:
            self._outbox.put(accepted)
        self._engine.submit(sequence)

    def _understand(self, request: GenerateRequest, stamps: Stamps) -> tuple[Prompt, Sequence]:
        """The prompt and what the engine makes of it. Raises PromptError when a limit or the context forbids it."""
        admission, prompter = self._model.admission, self._model.prompter
        backlog, rate = self._engine.backlog(), self._engine.pace.prefill_rate
        request = admission.limited(request)
        # A further answer to a prompt that is queued already adds nothing to it.
        is_new = request.choice == 0
        # Before the prompt is tokenised, and after it with its own length.
        if is_new:
            admission.check_queue(backlog, rate)
        prompt = prompter.prompt(request)
        admission.check_prompt(len(prompt.tokens), "messages" if request.messages else "prompt")
        if is_new:
            admission.check_queue(backlog, rate, len(prompt.tokens))
        return prompt, prompter.sequence(request, prompt, stamps)

    def _pin(self, pin: Pin) -> None:
        """Hands a pin to the engine, or answers PinRefused."""
        try:
            sequence = self._pins.sequence(pin, Stamps(time.monotonic()))
        except PromptError as error:
            refusal = PinRefused(pin.request_id, error.status, error.code, error.message, error.param)
            self._outbox.put(refusal)
            return
        self._engine.submit(sequence)


def _no_embeddings(request: Embed) -> Rejected:
    message = "this model generates text; it can't make embeddings"
    return Rejected(request.request_id, 400, "invalid_embedding_model", message, "model")


def _rejected(request_id: str, error: PromptError, context_length: int) -> Rejected:
    return Rejected(
        request_id=request_id,
        status=error.status,
        code=error.code,
        message=error.message,
        param=error.param,
        prompt_tokens=error.prompt_tokens,
        context_length=error.limit or context_length,
        retry_after_s=error.retry_after_s,
    )


def _load(spec: LoadModel, outbox: Outbox) -> LoadedModel | LoadedEncoder | None:
    """Loads and tells how it went; None when it failed."""
    begun = time.perf_counter()
    try:
        model = _open(spec, lambda stage: outbox.put(LoadProgress(stage)))
    except (ModelFileError, LoadError) as error:
        outbox.put(LoadFailed(error.code, error.message))
        return None
    except MemoryError:
        outbox.put(LoadFailed("out_of_memory", "the memory of this machine is not enough for this model"))
        return None
    seconds = time.perf_counter() - begun
    outbox.put(Ready(model.info, model.self_test, seconds, model.cache_hit))
    return model


def _open(spec: LoadModel, progress: Progress) -> LoadedModel | LoadedEncoder:
    if spec.model_path is None or not holds_encoder(spec.model_path):
        return load(spec, progress)
    # Imported here: a worker of the reference model must not pay for OpenVINO.
    from .encoders.loading import load_encoder

    return load_encoder(spec, progress)


def serve(connection: Connection) -> int:
    """Loads the model that the first message names and serves it; returns the exit code."""
    outbox = Outbox(connection)
    spec = connection.recv()
    assert isinstance(spec, LoadModel), "the first message names the model"
    model = _load(spec, outbox)
    if isinstance(model, LoadedEncoder):
        EmbeddingWorker(connection, outbox.put, model).run()
    elif model is not None:
        Worker(connection, outbox, model).run()
    outbox.close()
    return 0 if model is not None else 1


def main() -> None:
    # Ctrl-C in a terminal reaches the whole group; the daemon decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    give_back_large_buffers()
    try:
        code = serve(Connection(int(sys.argv[1])))
    except Exception:
        logger.exception("the worker broke")
        code = 1
    # Native thread pools may wait for ever in their destructors; nothing is left to be saved.
    os._exit(code)


if __name__ == "__main__":
    main()
