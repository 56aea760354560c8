"""One capsule file in the hands of the background thread: whatever the disk says, the engine only hears of the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .capsule import Capsule
from .files import CapsuleFile, Opened

_LOG = logging.getLogger(__name__)


class Written(NamedTuple):
    """What became of a file that was begun: None when the disk refused it or it was given up."""

    path: Path
    opened: Opened | None


@dataclass(slots=True)
class Writing:
    """`begin`, `add` for each block, then `finish` or `abandon`, in this order on one thread.

    A full or broken disk is told once in the log; what follows then does nothing. `report` is called at the end,
    then `done` is set, which any thread may read.
    """

    file: CapsuleFile
    report: Callable[[Written], None]
    done: bool = False
    _failed: bool = False

    def begin(self) -> None:
        """Opens the temporary file. A failure here, or below, gives the capsule up."""
        self._try(self.file.begin)

    def add(self, data: bytes) -> None:
        """Writes the next block."""
        self._try(lambda: self.file.add(data))

    def finish(self, capsule: Capsule, state_rows: Sequence[bytes]) -> None:
        """Adds the state rows and completes the file with the header `capsule`."""
        opened: list[Opened] = []

        def complete() -> None:
            for row in state_rows:
                self.file.add(row)
            opened.append(self.file.finish(capsule))

        self._try(complete)
        if self._failed:
            self.abandon()
        else:
            self.report(Written(self.file.path, opened[0]))
            self.done = True

    def abandon(self) -> None:
        """Leaves no file."""
        self.file.abandon()
        self.report(Written(self.file.path, None))
        self.done = True

    def _try(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except OSError as error:
            self._failed = True
            _LOG.warning(
                "a prefix of %d tokens is not kept on disk: %s", len(self.file.planned.tokens), error.strerror
            )
