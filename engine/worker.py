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

from .engine import Engine
from .loading import LoadedModel, load
from .memory import give_back_large_buffers
from .model_errors import LoadError, ModelFileError
from .pinning import PinIntake
from .prompting import PromptError
from .protocol import (
    Accepted,
    Cancel,
    CancelReason,
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
    Unpin,
)
from .reply_recall import recall_replies, recent_conversations
from .sequence import Stamps
from .worker_stats import StatsReporter

logger = logging.getLogger("agentserve.worker")


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
        self._engine = Engine(model.runner, model.config, stops, cache, outbox.put, capsules)
        self._pins = PinIntake(model.prompter, model.info.block_tokens)
        self._stored = recent_conversations(capsules.disk) if capsules.disk is not None else []
        self._stats = StatsReporter(self._engine, outbox.put)
        self._stopping = False

    def run(self) -> None:
        """The engine loop; returns after Shutdown."""
        threading.Thread(target=self._intake, name="intake", daemon=True).start()
        while not self._stopping:
            # Cleared before looking: what arrives in between sets it again.
            self._work.clear()
            if self._step():
                self._stats.report()
            else:
                self._engine.check_integrity()
                self._stats.report(idle=True)
                self._work.wait()
        self._engine.cancel_all(CancelReason.SHUTDOWN)
        self._engine.capsules.close()

    def _step(self) -> bool:
        try:
            return self._engine.step()
        except (RuntimeError, MemoryError, ValueError):
            # What a native library throws ends the request that met it, not the worker.
            logger.exception("a step failed")
            self._engine.fail_running("internal_error", "the engine failed while it computed this request")
            return True

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
                case Pin():
                    self._pin(message)
                case Unpin() | ListPins():
                    self._engine.ask(message)
                case Cancel(request_id, reason):
                    self._engine.cancel(request_id, reason)
                case Shutdown():
                    self._stopping = True
            self._work.set()

    def _take(self, request: GenerateRequest) -> None:
        """Answers Accepted or Rejected; what is accepted goes to the engine."""
        stamps, prompter = Stamps(time.monotonic()), self._model.prompter
        try:
            prompt = prompter.prompt(request)
            sequence = prompter.sequence(request, prompt, stamps)
        except PromptError as error:
            self._outbox.put(_rejected(request.request_id, error, prompter.context_length))
            return
        stamps.tokenize_s = time.monotonic() - stamps.arrived
        self._pins.recent.remember(request.request_id, request.namespace, prompt)
        asked = request.max_new_tokens
        self._outbox.put(
            Accepted(
                request_id=request.request_id,
                prompt_tokens=len(prompt.tokens),
                max_new_tokens=sequence.max_new_tokens,
                clipped=asked is not None and asked > sequence.max_new_tokens,
                queue_position=self._engine.load,
                tokenize_s=stamps.tokenize_s,
            )
        )
        self._engine.submit(sequence)

    def _pin(self, pin: Pin) -> None:
        """Hands a pin to the engine, or answers PinRefused."""
        try:
            sequence = self._pins.sequence(pin, Stamps(time.monotonic()))
        except PromptError as error:
            refusal = PinRefused(pin.request_id, error.status, error.code, error.message, error.param)
            self._outbox.put(refusal)
            return
        self._engine.submit(sequence)


def _rejected(request_id: str, error: PromptError, context_length: int) -> Rejected:
    return Rejected(
        request_id=request_id,
        status=error.status,
        code=error.code,
        message=error.message,
        param=error.param,
        prompt_tokens=error.prompt_tokens,
        context_length=context_length,
    )


def _load(spec: LoadModel, outbox: Outbox) -> LoadedModel | None:
    """Loads and tells how it went; None when it failed."""
    begun = time.perf_counter()
    try:
        model = load(spec, lambda stage: outbox.put(LoadProgress(stage)))
    except (ModelFileError, LoadError) as error:
        outbox.put(LoadFailed(error.code, error.message))
        return None
    except MemoryError:
        outbox.put(LoadFailed("out_of_memory", "the memory of this machine is not enough for this model"))
        return None
    seconds = time.perf_counter() - begun
    outbox.put(Ready(model.info, model.self_test, seconds, model.cache_hit))
    return model


def serve(connection: Connection) -> int:
    """Loads the model that the first message names and serves it; returns the exit code."""
    outbox = Outbox(connection)
    spec = connection.recv()
    assert isinstance(spec, LoadModel), "the first message names the model"
    model = _load(spec, outbox)
    if model is not None:
        Worker(connection, outbox, model).run()
    outbox.close()
    return 0 if model is not None else 1


def main() -> None:
    # Ctrl-C in a terminal reaches the whole group; the daemon decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    give_back_large_buffers()
    code = serve(Connection(int(sys.argv[1])))
    # Native thread pools may wait for ever in their destructors; nothing is left to be saved.
    os._exit(code)


if __name__ == "__main__":
    main()
