"""The only writer of standard output: answers, tables, and JSON for programs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence

from ..daemon.errors import AgentserveError
from .table import Layout, fitted, row_text, whole

CLOSED = 141
"""The exit code when whoever read our output closed it: what a shell shows for SIGPIPE."""
_LAST_STANDARD = 2


def line(text: str = "") -> None:
    """One line of data."""
    _write(f"{text}\n")


def piece(text: str) -> None:
    """A part of a line, shown at once."""
    _write(text)
    flush()


def flush() -> None:
    """Hands on what was written; ends the command when nobody reads it any more."""
    _write("", flush=True)


def json(value: object) -> None:
    """Any dataclass, mapping or list as indented JSON."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(value), indent=2)
    line(encoded.decode())


def json_line(value: object) -> None:
    """Any dataclass, mapping or list as one line of JSON, shown at once."""
    import msgspec

    piece(f"{msgspec.json.encode(value).decode()}\n")


def occupy_closed() -> None:
    """Puts nothing in place of standard streams that were closed, so that no socket or pipe of ours becomes one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(descriptor)


def screen(lines: Iterable[str]) -> None:
    """Replaces what a terminal shows; elsewhere the lines and an empty one."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    start, end = ("\x1b[H\x1b[2J", "") if is_terminal else ("", "\n")
    piece(start + "".join(f"{text}\n" for text in lines) + end)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Columns aligned with spaces, so that `awk` and eyes can both read them.

    In a terminal that is too narrow the columns with the heads `spare` are left out, the first of them first.
    """
    grid = [tuple(heads), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    shown = layout(heads, widths, spare)
    for cells in grid:
        line(row_text(cells, shown))


def layout(heads: Sequence[str], widths: Sequence[int], spare: Sequence[str] = ()) -> Layout:
    """What of columns that want these widths fits the terminal; all of them where the output is no terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return whole(widths)
    return fitted(heads, widths, shutil.get_terminal_size().columns, spare)


def row(cells: Sequence[str], shown: Layout) -> None:
    """One row of a table whose rows come one by one, shown at once."""
    piece(f"{row_text(cells, shown)}\n")


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Labelled lines; a label that is empty continues the one above."""
    for text in fact_lines(pairs):
        line(text)


def fact_lines(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Labelled lines as text."""
    shown = list(pairs)
    width = max((len(label) for label, _ in shown), default=0)
    for label, text in shown:
        yield f"{label.ljust(width)}  {text}"


def ask(prompt: str) -> str | None:
    """A line typed by a person, with history and editing; None at the end of input, "" after Ctrl-C."""
    import readline  # noqa: F401 (its import is what gives input() editing)

    try:
        return input(prompt).strip()
    except KeyboardInterrupt:
        # Pressed a moment after an answer has ended, it must not end the conversation.
        line()
        return ""
    except EOFError:
        line()
        return None


def _write(text: str, *, flush: bool = False) -> None:
    if sys.stdout is None:
        if text:
            raise AgentserveError("Standard output is closed; the answer has nowhere to go")
        return
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its exit: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(CLOSED) from None
