"""One child process and the pipe to it; knows nothing of what the messages mean.

The event loop itself reads the pipe, because a token on its way should wake no other thread. Everything
that can wait has a thread: writing, so that a worker that does not read can't stop the daemon; the worker's
standard error, which goes into the log; and reaping, once the pipe has ended. Handlers run in the event loop,
in the order in which the worker spoke, `on_exit` last.

The worker leads its own session: Ctrl-C in the terminal reaches the daemon alone, which drains first. When
the daemon dies, the pipe ends and so does the worker.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import queue
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from threading import Thread

from ...engine.protocol import FromWorker, ToWorker

_LOG = logging.getLogger("agentserve.worker")
# How long a process may live on after it closed its pipe.
_EXIT_GRACE_S = 5.0
_READ_BYTES = 1 << 18
_LEVELS = logging.getLevelNamesMapping()

Command = Callable[[int], Sequence[str]]


def worker_command(descriptor: int) -> Sequence[str]:
    """The command line of the engine's worker, whose end of the pipe is `descriptor`."""
    return [sys.executable, "-P", "-m", "agentserve.engine.worker", str(descriptor)]


class Frames:
    """Splits the byte stream of a `multiprocessing.connection.Connection` into its messages.

    Each is preceded by its length, a big-endian 32-bit number. A longer one than that can hold would be no
    message of this protocol.
    """

    _LENGTH = struct.Struct("!i")

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that `data` completes."""
        self._buffer += data
        start, header = 0, self._LENGTH.size
        while len(self._buffer) >= start + header:
            end = start + header + self._LENGTH.unpack_from(self._buffer, start)[0]
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[start + header : end])
            start = end
        del self._buffer[:start]


class WorkerProcess:
    """A running worker. Made and used in the event loop; no method waits. Raises OSError when made."""

    def __init__(
        self, command: Command, on_message: Callable[[FromWorker], None], on_exit: Callable[[int], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_exit = on_exit
        self._frames = Frames()
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = _spawn(command, theirs.fileno(), self._socket)
        self._writer: Connection[ToWorker, FromWorker] = Connection(self._socket.dup().detach())
        self._loop.add_reader(self._socket, self._read)
        for target in (self._write, self._log_errors):
            Thread(target=target, name=f"worker-{self.pid}{target.__name__}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Queues a message; it is lost if the worker ends first."""
        self._outbox.put(message)

    def terminate(self) -> None:
        """Asks the worker to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends the worker for certain; `on_exit` still comes."""
        self._process.kill()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in self._frames.feed(data):
            self._on_message(pickle.loads(message))
        if not data:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            Thread(target=self._reap, name=f"worker-{self.pid}-reap", daemon=True).start()

    def _reap(self) -> None:
        try:
            code = self._process.wait(_EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._outbox.put(None)
        try:
            self._loop.call_soon_threadsafe(self._on_exit, code)
        except RuntimeError:
            _LOG.debug("worker %d outlived the event loop", self.pid)

    def _write(self) -> None:
        with self._writer as connection:
            while (message := self._outbox.get()) is not None:
                try:
                    connection.send(message)
                except OSError:
                    # The reader sees the same end and reports it.
                    _LOG.debug("worker %d does not read any more", self.pid)

    def _log_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                level, text = _said(line.rstrip())
                _LOG.log(level, "[%d] %s", self.pid, text)


def _said(line: str) -> tuple[int, str]:
    """The level with which the worker wrote a line, and the rest of it.

    What has no level is no message of ours: a traceback, or the last words of a library.
    """
    level, _, text = line.partition(" ")
    return (_LEVELS[level], text) if level in _LEVELS else (logging.ERROR, line)


def _spawn(command: Command, descriptor: int, ours: socket.socket) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command(descriptor),
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
