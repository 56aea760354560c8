"""The running daemon: HTTP server, workers, start of the default model, and an orderly end.

The first request for the end stops the intake, gives running requests `drain_timeout` seconds, and ends the
workers. A second one, or one without drain, ends everything at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext

import uvicorn

from .app import build_app
from .config import Settings
from .errors import AgentserveError, StartError
from .http.connections import ConnectionLimits, bounded
from .paths import Paths
from .records.log import RecordFile, RecordLog
from .service import Service
from .startup import Startup
from .store.registry import ModelStore
from .workers.process import Command, worker_command
from .workers.router import Router

_LOG = logging.getLogger("agentserve.daemon")
_KEEP_ALIVE_S = 75
_CONNECTIONS_CLOSE_S = 2


class _HttpServer(uvicorn.Server):
    """Uvicorn without its signal handlers: signals drain first."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class Daemon:
    """Everything behind one listening socket. `run` once; all other methods are for its event loop."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        listener: socket.socket,
        startup: Startup,
        command: Command = worker_command,
    ) -> None:
        self.startup = startup
        self.router = Router(
            settings, ModelStore(paths.models), paths.compile_cache, command, capsules=paths.capsules
        )
        records = RecordLog(RecordFile(paths.request_log), contents=settings.log_content)
        self.service = Service(settings, self.router, startup, self.request_shutdown, records)
        self._listener = listener
        self._drain_timeout = settings.drain_timeout
        self._http = _HttpServer(_http_config(self.service))
        self._tasks: set[asyncio.Task[None]] = set()
        self._start_error: AgentserveError | None = None

    async def run(self) -> None:
        """Serves until somebody asks for the end. Raises StartError when the default model can't load."""
        self.startup.listening(self._listener.getsockname()[1])
        self._spawn(self._load_default())
        await self._http.serve(sockets=[self._listener])
        await self.router.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._start_error is not None:
            raise StartError(str(self._start_error)) from self._start_error

    def request_shutdown(self, drain: bool) -> None:
        """Begins the end and returns; asked a second time, or without drain, it comes at once."""
        if drain and not self.router.closed:
            self.router.close()
            self._spawn(self._drain())
        else:
            _LOG.info("stopping at once")
            self.router.kill()
            self._http.should_exit = True

    async def _drain(self) -> None:
        ledger = self.service.ledger
        _LOG.info("shutting down; %d requests are running", len(ledger.active))
        if not await ledger.until_idle(self._drain_timeout):
            _LOG.warning("%d requests did not finish in time", len(ledger.active))
        await self.router.stop()
        self._http.should_exit = True

    async def _load_default(self) -> None:
        try:
            await self.startup.run(self.router)
        except AgentserveError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 (whoever waits for the start would wait for ever)
            _LOG.critical("the start broke", exc_info=True)
            self._give_up(StartError(f"The start broke ({_one_line(error)}); `agentserve logs` shows where"))

    def _give_up(self, error: AgentserveError) -> None:
        if not self.router.closed:
            _LOG.error("the start failed: %s", error)
            self._start_error = error
            self._http.should_exit = True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_report_bug)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _report_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _LOG.critical("a background task broke", exc_info=error)


def _http_config(service: Service) -> uvicorn.Config:
    settings = service.settings
    limits = ConnectionLimits(
        settings.max_connections, settings.receive_timeout, settings.slow_reader_timeout
    )
    return uvicorn.Config(
        build_app(service),
        loop="asyncio",
        http=bounded(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CONNECTIONS_CLOSE_S,
    )
