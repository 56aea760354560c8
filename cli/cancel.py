"""cancel: end requests that run or wait."""

from __future__ import annotations

from typing import Annotated

import typer

from ..daemon.client import Cancellation, DaemonClient
from ..daemon.paths import resolve_paths
from . import output
from .diagnostics import say


def cancel(
    request_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Of the answer, or its X-Request-ID.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every request.")] = False,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Every request of this session.")
    ] = None,
) -> None:
    """Cancel requests that run or wait. Prints the id of each; what was computed of their prompts is kept."""
    if sum((request_id is not None, everything, session is not None)) != 1:
        raise typer.BadParameter("give one of ID, --all and --session", param_hint="ID")
    client = DaemonClient.discover(resolve_paths())
    done = client.cancel_all(session) if request_id is None else client.cancel(request_id)
    for name in done.cancelled:
        output.line(name)
    if not done.cancelled:
        say(_nothing(done))


def _nothing(done: Cancellation) -> str:
    return f"It had ended before: {done.state}" if done.state else "No request is running"
