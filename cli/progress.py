"""Shows on standard error what a long command is doing: one moving line on a terminal, else plain lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .diagnostics import is_terminal, say

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Report = Callable[[str, int, int], None]
"""Called with a text, the bytes done and the bytes in total (0 when there is no measure)."""


@contextmanager
def progress() -> Iterator[Report]:
    """Gives the function to report with; what was shown on a terminal is cleared at the end."""
    if not is_terminal():
        yield _line_reporter()
        return
    with _display() as display:
        yield _display_reporter(display)


def _line_reporter() -> Report:
    """Says each text once, when it changes: for logs and pipes."""
    last = ""

    def report(text: str, _done: int, _total: int) -> None:
        nonlocal last
        if text != last:
            say(text)
            last = text

    return report


def _display_reporter(display: Progress) -> Report:
    """One task at a time: a new text takes the place of the one before, with its own clock and rate."""
    shown = ("", 0)

    def report(text: str, done: int, total: int) -> None:
        nonlocal shown
        if (text, total) != shown:
            for task_id in display.task_ids:
                display.remove_task(task_id)
            display.add_task(text, total=total or None)
            shown = (text, total)
        display.update(display.task_ids[0], completed=done)

    return report


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    measured = [BarColumn(bar_width=12), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    columns += [_shown_when(column, measured=True) for column in measured]
    columns += [_shown_when(TimeElapsedColumn(), measured=False)]
    return Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)


def _shown_when(column: ProgressColumn, *, measured: bool) -> ProgressColumn:
    """The same column, blank for tasks that have no total, or for those that have one."""
    from rich.console import RenderableType
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class ShownWhen(ProgressColumn):
        def render(self, task: Task) -> RenderableType:
            return column.render(task) if (task.total is not None) == measured else Text()

    return ShownWhen()
