"""Locks between processes: flock on a file, given up by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def no_notice() -> None:
    """For callers that wait in silence."""


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None] = no_notice) -> Iterator[None]:
    """Holds an exclusive lock on `path`, which is made if missing and never removed.

    `on_wait` is called once if somebody else holds the lock. Threads of one process exclude each other too,
    since each call opens the file anew. Raises OSError when the file can't be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
