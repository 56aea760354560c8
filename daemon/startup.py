"""From an open port to a loaded default model: pull it if it is not here, load it, and tell how it goes.

Progress is kept for `status` and goes, line by line, to a pipe that `agentserve up` passes as
`--report-fd N`. Each line is a `StartupSnapshot` as JSON. The last one has the phase `ready` or `failed`; an end
without one of them means that the daemon died or was stopped. Lines that the reader has no room for are left out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TypeVar

import msgspec

from ..engine.protocol import LoadStage
from .errors import ModelNotFound, StartError, Unavailable
from .snapshot import StartupSnapshot
from .store.pull import pull
from .store.pull_progress import PullProgress
from .store.registry import ModelStore
from .workers.router import Router, canonical_name

T = TypeVar("T")
_PULL_REPORT_EVERY_S = 0.1


class Reporter:
    """The daemon's end of the report pipe; without a descriptor it does nothing."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def write(self, snapshot: StartupSnapshot) -> None:
        """Sends a line, and closes the pipe after the last one."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, msgspec.json.encode(snapshot) + b"\n")
        except BlockingIOError:
            return
        except OSError:
            self.close()
        if snapshot.phase in ("ready", "failed"):
            self.close()

    def close(self) -> None:
        """Ends the report; harmless when it has ended."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(slots=True)
class Startup:
    """Where the start stands. `state` is replaced with each step."""

    reporter: Reporter
    state: StartupSnapshot = field(default_factory=lambda: StartupSnapshot("starting"))

    def listening(self, port: int) -> None:
        """The socket is bound."""
        self._to(replace(self.state, pid=os.getpid(), port=port))

    def failed(self, error: str) -> None:
        """The start is over. `error` is one line."""
        self._to(replace(self.state, phase="failed", error=error))

    async def run(self, router: Router) -> None:
        """Loads the default model, pulling it first if it is missing. Raises AgentserveError."""
        name = router.default_model
        try:
            await router.resolve(name)
        except ModelNotFound:
            await self._pull(canonical_name(name, router.settings.aliases), router.store)
        except Unavailable as error:
            # Clients are not told where the store lies; who starts the daemon needs to know.
            raise StartError(str(error.__cause__ or error)) from error
        async with router.hold(name, "any") as worker:
            self._to(replace(self.state, phase="loading", detail=f"starting a worker for {worker.load.name}"))
            router.on_change = lambda: self._loading(worker.facts.load_stage)
            await worker.ensure_ready()
            router.on_change = lambda: None
        self._to(replace(self.state, phase="ready", detail=""))

    async def _pull(self, name: str, store: ModelStore) -> None:
        loop = asyncio.get_running_loop()
        reported = 0.0

        def progress(step: PullProgress) -> None:
            nonlocal reported
            now = time.monotonic()
            if now - reported >= _PULL_REPORT_EVERY_S or step.done in (0, step.total):
                reported = now
                loop.call_soon_threadsafe(self._pulling, name, step)

        await in_daemon_thread(lambda: pull(name, store, progress))

    def _pulling(self, name: str, step: PullProgress) -> None:
        detail = f"{name}: {step.stage.value}"
        self._to(
            replace(self.state, phase="pulling", detail=detail, bytes_done=step.done, bytes_total=step.total)
        )

    def _loading(self, stage: LoadStage | None) -> None:
        if stage is not None:
            self._to(replace(self.state, detail=stage.value))

    def _to(self, state: StartupSnapshot) -> None:
        self.state = state
        self.reporter.write(state)


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread that does not hold up the end of the process."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
            outcome.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(outcome)
