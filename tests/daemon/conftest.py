from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agentserve.daemon.config import Settings
from agentserve.daemon.errors import AgentserveError
from agentserve.daemon.launch import bind
from agentserve.daemon.paths import Paths, resolve_paths
from agentserve.daemon.server import Daemon
from agentserve.daemon.startup import Reporter, Startup
from agentserve.daemon.store.registry import Arrived, ModelStore
from agentserve.daemon.workers.process import Command, worker_command

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


def fake_command(*switches: str) -> Command:
    """The command of a fake worker with these switches."""

    def command(descriptor: int) -> Sequence[str]:
        return [sys.executable, "-P", str(FAKE_WORKER), str(descriptor), *switches]

    return command


@dataclass
class LiveDaemon:
    """A daemon that serves on a real socket, in a thread with its own event loop."""

    daemon: Daemon
    port: int
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    thread: threading.Thread = field(init=False)
    error: AgentserveError | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self.daemon.run())
            except AgentserveError as error:
                self.error = error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, work: Callable[[], Any]) -> Any:
        """Runs `work` in the daemon's event loop."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition` holds in the daemon's event loop."""

        async def wait() -> None:
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.002)

        asyncio.run_coroutine_threadsafe(wait(), self.loop).result(15)

    def shut_down(self, *, drain: bool = False) -> None:
        self.loop.call_soon_threadsafe(self.daemon.request_shutdown, drain)

    def join(self) -> None:
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return resolve_paths({"AGENTSERVE_HOME": str(tmp_path)})


Serve = Callable[..., LiveDaemon]


@pytest.fixture
def serve(paths: Paths) -> Iterator[Serve]:
    """Starts daemons with the reference model, or with a fake worker when switches are given."""
    running: list[LiveDaemon] = []

    def start(*, command: Command | None = None, ready: bool = True, **settings: Any) -> LiveDaemon:
        listener = bind("127.0.0.1", 0)
        # The reference model repeats itself: with drafts its replies would be over before a test could interfere.
        chosen = Settings(**{"mock": True, "max_draft_tokens": 0, **settings})
        daemon = Daemon(chosen, paths, listener, Startup(Reporter(None)), command or worker_command)
        live = LiveDaemon(daemon, listener.getsockname()[1])
        running.append(live)
        live.start()
        if ready:
            live.until(lambda: daemon.startup.state.phase == "ready")
        return live

    yield start
    for live in running:
        if live.thread.is_alive():
            live.shut_down()
        live.join()


@pytest.fixture(scope="session")
def fake() -> Callable[..., Command]:
    """Makes the command of a fake worker from its switches."""
    return fake_command


def put_model(store: ModelStore, name: str, content: bytes) -> None:
    """Stores a file that no engine has looked at; it is good for fake workers alone."""
    digest = hashlib.sha256(content).hexdigest()
    with store.arrival(digest):
        staged = store.staging(digest)
        staged.write_bytes(content)
        store.add(staged, Arrived(name, digest, "a test", {"context_length": 2048}))


@pytest.fixture(scope="session")
def put() -> Callable[[ModelStore, str, bytes], None]:
    return put_model
