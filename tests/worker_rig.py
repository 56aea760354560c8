"""A real worker process, spoken to over its pipe."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from agentserve.engine.protocol import FromWorker, LoadFailed, LoadModel, Ready, ToWorker, WorkerStats

TIMEOUT_S = 60.0


class WorkerProcess:
    """Sends and receives; statistics are left out of what `receive` returns."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "agentserve.engine.worker", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parent)
        theirs.close()
        self.connection = Connection(os.dup(ours.fileno()))
        ours.close()

    def send(self, message: ToWorker) -> None:
        self.connection.send(message)

    def receive(self) -> FromWorker:
        while True:
            assert self.connection.poll(TIMEOUT_S), "the worker said nothing"
            event: FromWorker = self.connection.recv()
            if not isinstance(event, WorkerStats):
                return event

    def receive_until(self, *kinds: type) -> list[FromWorker]:
        """All events up to the first of one of `kinds`."""
        events = [self.receive()]
        while not isinstance(events[-1], kinds):
            events.append(self.receive())
        return events

    def load(self, spec: LoadModel) -> Ready | LoadFailed:
        self.send(spec)
        last = self.receive_until(Ready, LoadFailed)[-1]
        assert isinstance(last, Ready | LoadFailed)
        return last

    def close(self) -> None:
        self.connection.close()
        self.process.wait(TIMEOUT_S)


@contextmanager
def worker_process() -> Iterator[WorkerProcess]:
    worker = WorkerProcess()
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.close()
