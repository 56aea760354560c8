"""requests: the records of requests, those that run and those that ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Annotated

import typer

from ..daemon.client import DaemonClient
from ..daemon.errors import AgentserveError, RequestError
from ..daemon.paths import resolve_paths
from ..daemon.snapshot import RequestRecord
from . import output
from .diagnostics import say
from .logs import added
from .status import outcome_text
from .table import Layout

_HEADS = ("REQUEST", "STARTED", "CLIENT", "MODEL", "STATE", "CACHED", "NEW", "OUT", "QUEUE", "TTFT", "TOK/S")
_MISSING = "-"
_SPARE = ("QUEUE", "CLIENT", "NEW", "CACHED", "TTFT", "STARTED", "MODEL", "TOK/S", "OUT")
_CLIENT_WIDTH = 20
_WIDTHS = (36, 8, 20, 32, 31, 7, 7, 7, 8, 8, 6)
"""Of the columns where rows are shown as they come: an id of ours, a clock, a name …"""


def requests(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with each request that ends until Ctrl-C.")
    ] = False,
    state: Annotated[str | None, typer.Option("--state", help="Such as decode, done or cancelled.")] = None,
    client: Annotated[str | None, typer.Option("--client", help="Part of the client's name.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Of this session.")] = None,
    number: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=1000, help="How many to show, or to begin with.")
    ] = 20,
    json: Annotated[bool, typer.Option("--json", help="A JSON list; with --follow a line for each.")] = False,
) -> None:
    """Show what became of the last requests, newest first."""
    if follow:
        if state or client or session:
            raise typer.BadParameter("shows every request that ends", param_hint="--follow")
        _follow(resolve_paths().request_log, number, json=json)
        return
    found = _found(state=state, client=client, session=session, limit=number)
    if json:
        output.json(found)
    elif not found:
        say("No such request")
    else:
        output.table(_HEADS, (_row(record) for record in found), _SPARE)


def _found(**wanted: str | int | None) -> list[RequestRecord]:
    try:
        return DaemonClient.discover(resolve_paths()).requests(**wanted)
    except RequestError as error:
        if error.param is None:
            raise
        raise typer.BadParameter(error.message, param_hint=f"--{error.param}") from None


def _follow(path: Path, number: int, *, json: bool) -> None:
    try:
        log = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise AgentserveError(f"There are no records yet at {path}; requests make them") from None
    layout = output.layout(_HEADS, _WIDTHS, _SPARE)
    with log:
        if not json:
            output.row(_HEADS, layout)
        for line in chain(deque(log, maxlen=number), _lines(path, log)):
            _show(line, layout, json=json)


def _lines(path: Path, log: IO[str]) -> Iterator[str]:
    """Whole lines that are added from now on."""
    rest = ""
    for text in added(path, log):
        *lines, rest = (rest + text).split("\n")
        yield from lines


def _show(line: str, layout: Layout, *, json: bool) -> None:
    import msgspec

    try:
        record = msgspec.json.decode(line, type=RequestRecord)
    except msgspec.DecodeError as error:
        say(f"A line of the file is no record and was left out: {error}")
        return
    if json:
        output.piece(f"{line.rstrip()}\n")
    else:
        output.row(_row(record), layout)


def _row(record: RequestRecord) -> tuple[str, ...]:
    return (
        record.request_id,
        time.strftime("%H:%M:%S", time.localtime(record.enqueued_at)),
        record.client[:_CLIENT_WIDTH] or _MISSING,
        record.model or _MISSING,
        outcome_text(record),
        _count(record.cached_tokens),
        _count(record.new_prefill_tokens),
        str(record.completion_tokens),
        _seconds(record.queued_ms),
        _seconds(record.first_delta_ms),
        _MISSING if record.decode_tok_per_s is None else f"{record.decode_tok_per_s:.1f}",
    )


def _count(number: int | None) -> str:
    return _MISSING if number is None else str(number)


def _seconds(milliseconds: float | None) -> str:
    return _MISSING if milliseconds is None else f"{milliseconds / 1000:.3f} s"
