"""One daemon per user: the lock that a running daemon holds, and the file that says where it listens.

The lock is the truth, since the kernel gives it up when its holder dies; the file of a dead daemon is stale
and is overwritten by the next one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .errors import StartError
from .paths import Paths

# A client that looks whether the lock is held holds it for an instant itself.
_ATTEMPTS = 10
_ATTEMPT_S = 0.05


@dataclass(frozen=True, slots=True)
class Instance:
    """A running daemon; `started_at` is in unix seconds."""

    pid: int
    host: str
    port: int
    started_at: float
    version: str


@contextmanager
def instance_lock(paths: Paths) -> Iterator[None]:
    """Holds the single-instance lock. Raises StartError when another daemon holds it, OSError otherwise."""
    with paths.lock_file.open("ab") as handle:
        for _ in range(_ATTEMPTS):
            if _try_lock(handle.fileno(), fcntl.LOCK_EX):
                break
            time.sleep(_ATTEMPT_S)
        else:
            raise StartError(_already_running(read_instance(paths)))
        yield


@contextmanager
def announced(paths: Paths, instance: Instance) -> Iterator[None]:
    """The instance file names this daemon while the block runs. Raises OSError."""
    temporary = paths.instance_file.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(instance))
    temporary.replace(paths.instance_file)
    try:
        yield
    finally:
        paths.instance_file.unlink(missing_ok=True)


def running_instance(paths: Paths) -> Instance | None:
    """The daemon that runs now, or None; a stale file of a dead daemon counts as none."""
    if not _is_held(paths.lock_file):
        return None
    instance = read_instance(paths)
    return instance if instance and _is_alive(instance.pid) else None


def read_instance(paths: Paths) -> Instance | None:
    """What the instance file says, whether or not that daemon still lives; None when it says nothing."""
    try:
        return msgspec.json.decode(paths.instance_file.read_bytes(), type=Instance)
    except (OSError, msgspec.MsgspecError):
        return None


def _already_running(other: Instance | None) -> str:
    where = f" (pid {other.pid}, port {other.port})" if other else ""
    return f"agentserve is already running{where}; use `agentserve status`, or `agentserve down` to stop it"


def _try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_held(lock_file: Path) -> bool:
    try:
        with lock_file.open("rb") as handle:
            return not _try_lock(handle.fileno(), fcntl.LOCK_SH)
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
