"""The single owner of one worker process: its state, what is known of it, and the requests inside it.

Callers never look at the state first. They `await ensure_ready()`, which starts the worker where that is
needed, and then `open()` a request. Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ...engine.protocol import (
    Accepted,
    Cancel,
    CancelReason,
    Embed,
    Finished,
    FromWorker,
    Generate,
    GenerateRequest,
    LoadFailed,
    LoadModel,
    LoadProgress,
    LoadStage,
    ModelInfo,
    PinCommand,
    Ready,
    Rejected,
    RequestEvent,
    SelfTest,
    SessionCommand,
    Shutdown,
    TokenAnswer,
    TokenCommand,
    ToWorker,
    WorkerStats,
)
from ..errors import Unavailable
from .channel import EventChannel
from .lifecycle import Happened, State, move
from .open_requests import OpenRequests, Question
from .process import Command, WorkerProcess, worker_command
from .retry_after import LoadClock, retry_after
from .watchdog import Watchdog

_LOG = logging.getLogger(__name__)
_SHUTDOWN_GRACE_S = 5.0
_TERMINATE_GRACE_S = 2.0


class Failure(NamedTuple):
    """Why there is no worker, fit for a person and for a client."""

    message: str
    code: str
    retry_after: int | None = None

    def error(self) -> Unavailable:
        """A fresh exception for each who has to know."""
        return Unavailable(self.message, code=self.code, retry_after=self.retry_after)


@dataclass(slots=True)
class Facts:
    """What the running, or last, worker process has told; new with each start."""

    pid: int | None = None
    load_stage: LoadStage | None = None
    model: ModelInfo | None = None
    self_test: SelfTest | None = None
    load_s: float = 0.0
    compile_cache_hit: bool = False
    stats: WorkerStats | None = None
    failure: Failure | None = None


class Supervisor:
    """Runs one worker for `load`; at most `load_timeout` seconds may pass until it is ready.

    A worker that has requests and does nothing for `stall_timeout` seconds is killed. When one dies, the next is started
    if there are requests that the dead one had not started. `on_change` is called whenever state or facts have changed.
    """

    def __init__(
        self,
        load: LoadModel,
        load_timeout: float,
        command: Command = worker_command,
        on_change: Callable[[], None] = lambda: None,
        stall_timeout: float = 120.0,
    ) -> None:
        self.load = load
        self.state = State.STOPPED
        self.facts = Facts()
        self._load_timeout = load_timeout
        self._command = command
        self._on_change = on_change
        self._process: WorkerProcess | None = None
        self._outcome: asyncio.Future[ModelInfo] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timeout = stall_timeout
        self._watchdog = Watchdog(stall_timeout, self._stalled)
        self._requests = OpenRequests()
        self._clock = LoadClock()
        self._gone = asyncio.Event()
        self._gone.set()

    @property
    def active(self) -> int:
        """Requests that the worker has not finished with."""
        return len(self._requests)

    @property
    def wait_s(self) -> float:
        """Seconds until a request of now would be answered, by what was measured; 0 when nothing was."""
        if self.state is State.READY:
            return self.facts.stats.wait_s if self.facts.stats else 0.0
        if self.state is State.STARTING:
            return self._clock.left(time.monotonic())
        return self._clock.last_s or 0.0

    # ---- what callers do

    async def ensure_ready(self) -> ModelInfo:
        """The loaded model; starts the worker if there is none, and waits for one that ends or loads.

        Any number of callers share one start, and a caller that goes away does not stop it.
        Raises Unavailable when the worker can't be started or can't load.
        """
        while self.state is State.STOPPING:
            await self._gone.wait()
        outcome = self._outcome if self.state in (State.STARTING, State.READY) else self._start()
        assert outcome is not None
        return await asyncio.shield(outcome)

    def open(
        self, request: GenerateRequest, channel: EventChannel | None = None
    ) -> AbstractContextManager[EventChannel]:
        """Sends a request to the ready worker and gives the channel of its events, which may be that of others too.

        Leaving the block before the last event cancels the request. Raises Unavailable when there is no
        ready worker; so does the channel, when the worker ends.
        """
        return self._channel(request.request_id, Generate(request), channel)

    def ask(
        self, command: Embed | PinCommand | SessionCommand | TokenCommand
    ) -> AbstractContextManager[EventChannel]:
        """Sends texts to embed, a command about pins or sessions, or a question about tokens, like `open` a request."""
        return self._channel(command.request_id, command)

    @contextmanager
    def _channel(
        self, request_id: str, question: Question, channel: EventChannel | None = None
    ) -> Iterator[EventChannel]:
        if self.state is not State.READY:
            raise Unavailable(
                "The model's worker process is not running", retry_after=retry_after(self.wait_s)
            )
        channel = self._requests.add(request_id, question, channel)
        self._watchdog.start()
        self._send(question)
        try:
            yield channel
        finally:
            self.cancel(request_id, CancelReason.CLIENT)

    def cancel(self, request_id: str, reason: CancelReason) -> None:
        """Takes a request back and drops its channel; nothing happens if it has ended or was cancelled."""
        if self._requests.leave(request_id) and self.state is not State.STARTING:
            self._send(Cancel(request_id, reason))

    async def stop(self, *, drain: bool = False, timeout: float = 0.0) -> None:
        """Ends the worker and returns when its process is reaped; harmless when there is none.

        `drain` gives running requests `timeout` seconds to finish. Then the worker is asked to end, then
        terminated, then killed; requests that it still has fail as Unavailable.
        """
        if drain:
            await _happens(self._requests.idle, timeout)
        if self.state in (State.STARTING, State.READY):
            # A load sits in native code that reads no message.
            grace = _SHUTDOWN_GRACE_S if self.state is State.READY else 0.0
            self._move(Happened.STOP)
            self._send(Shutdown())
            await self._force_end(grace)
        await self._gone.wait()

    def kill(self) -> None:
        """Ends the worker process at once; whatever waits for it gets Unavailable."""
        if self.state in (State.STARTING, State.READY):
            self._move(Happened.STOP)
        if self._process is not None:
            self._process.kill()

    # ---- the process

    def _start(self) -> asyncio.Future[ModelInfo]:
        self.facts = Facts()
        outcome = self._outcome = asyncio.get_running_loop().create_future()
        self._gone.clear()
        self._move(Happened.START)
        self._clock.begin(time.monotonic())
        try:
            self._process = WorkerProcess(self._command, self._received, self._exited)
        except OSError as error:
            self.facts.failure = Failure(
                f"The worker process can't be started: {error.strerror}", "load_failed"
            )
            self._exited(0)
            return outcome
        self.facts.pid = self._process.pid
        _LOG.info("worker %d loads %s", self._process.pid, self.load.name)
        self._timer = asyncio.get_running_loop().call_later(self._load_timeout, self._load_timed_out)
        self._send(self.load)
        return outcome

    def _load_timed_out(self) -> None:
        self.facts.failure = Failure(
            f"Loading {self.load.name} took longer than {self._load_timeout:g} s (load_timeout)",
            "load_timeout",
        )
        self.kill()

    def _stalled(self) -> None:
        message = f"The worker process of {self.load.name} did nothing for {self._stall_timeout:g} s (stall_timeout)"
        self.facts.failure = Failure(message, "worker_stalled", self._restart_s())
        assert self._process is not None
        self._process.kill()

    async def _force_end(self, grace: float) -> None:
        process = self._process
        assert process is not None
        if await _happens(self._gone, grace):
            return
        process.terminate()
        if await _happens(self._gone, _TERMINATE_GRACE_S):
            return
        _LOG.warning("worker %d ignores SIGTERM and is killed", process.pid)
        process.kill()

    def _send(self, message: ToWorker) -> None:
        assert self._process is not None
        self._process.send(message)

    def _move(self, happened: Happened) -> None:
        self.state = move(self.state, happened)
        self._on_change()

    # ---- what the worker says

    def _received(self, message: FromWorker) -> None:
        match message:
            case WorkerStats():
                self.facts.stats = message
                self._watchdog.heard()
            case LoadProgress():
                self.facts.load_stage = message.stage
                self._on_change()
            case Ready():
                self._became_ready(message)
            case LoadFailed():
                self.facts.failure = _load_failure(self.load.name, message)
            case _:
                self._forward(message)

    def _became_ready(self, ready: Ready) -> None:
        if self.state is not State.STARTING:
            return
        self.facts.load_stage = None
        self.facts.model, self.facts.self_test = ready.model, ready.self_test
        self.facts.load_s, self.facts.compile_cache_hit = ready.load_s, ready.compile_cache_hit
        self._stop_timer()
        self._clock.end(time.monotonic())
        self._move(Happened.READY)
        _LOG.info("worker %s serves %s after %.2f s", self.facts.pid, ready.model.name, ready.load_s)
        assert self._outcome is not None
        self._outcome.set_result(ready.model)
        for question in self._requests.move():
            self._watchdog.start()
            self._send(question)

    def _forward(self, event: RequestEvent) -> None:
        # These come from the thread that takes requests in; all others show that the engine works.
        if not isinstance(event, Accepted | Rejected | TokenAnswer):
            self._watchdog.heard()
        if isinstance(event, Finished) and event.cancel_reason is CancelReason.SHUTDOWN:
            self._requests.end(event.request_id, self._unloading().error())
        elif not self._requests.deliver(event):
            self.cancel(event.request_id, CancelReason.SLOW_READER)
        if not self._requests:
            self._watchdog.stop()

    def _exited(self, code: int) -> None:
        self._stop_timer()
        self._watchdog.stop()
        failure = self._explain(code)
        was_ready, self._process = self.state is State.READY, None
        # What it remembered is gone with it.
        self.facts.stats = None
        self._move(Happened.EXITED)
        self.facts.load_stage = None
        if self.state is State.FAILED:
            self.facts.failure = failure
            _LOG.error("worker %s of %s: %s", self.facts.pid, self.load.name, failure.message)
        self._fail_callers(failure)
        self._requests.fail(failure.error, but_movable=was_ready)
        self._gone.set()
        if self._requests:
            _LOG.info("%d requests of %s go to the next worker", len(self._requests), self.load.name)
            self._start()

    def _fail_callers(self, failure: Failure) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(failure.error())
            self._outcome.exception()  # There may be no caller left to look at it.
        self._outcome = None

    def _explain(self, code: int) -> Failure:
        if self.facts.failure is not None:
            return self.facts.failure
        if self.state is State.STOPPING:
            return self._unloading()
        end = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        during = f" while {self.facts.load_stage.value}" if self.facts.load_stage else ""
        hint = "; the system may be out of memory" if code == -signal.SIGKILL else ""
        message = f"The worker process of {self.load.name} {end}{during}{hint}"
        return Failure(message, "worker_died", self._restart_s())

    def _unloading(self) -> Failure:
        return Failure("The model is being unloaded", "shutting_down", self._restart_s())

    def _restart_s(self) -> int:
        return retry_after(self._clock.last_s or 0.0)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _happens(event: asyncio.Event, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _load_failure(name: str, said: LoadFailed) -> Failure:
    advice = f"; run `agentserve rm {name}`, then pull it again" if said.code == "corrupt_model" else ""
    return Failure(f"{name} can't be loaded: {said.message}{advice}", said.code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
