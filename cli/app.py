"""The Typer app: which commands there are. No logic."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import __version__
from . import bench, cancel, chat, logs, models, output, pins, requests, serve, sessions, status
from .diagnostics import guarded
from .options import takes_settings

app = typer.Typer(
    name="agentserve",
    help="A local model server for coding agents.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        output.line(f"agentserve {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """A local model server for coding agents."""


app.command()(takes_settings(serve.up))
app.command()(serve.down)
app.command()(takes_settings(serve.restart))
app.command()(status.status)
app.command()(requests.requests)
app.command()(cancel.cancel)
app.command()(logs.logs)
app.command()(chat.run)
app.command()(bench.bench)
app.command()(models.pull)
app.command("list")(models.list_models)
app.command()(models.show)
app.command("rm")(models.remove)
app.command()(pins.pin)
app.command()(pins.unpin)
app.add_typer(pins.pins_app, name="pins")
app.add_typer(sessions.sessions_app, name="sessions")


def main() -> None:
    """The console script."""
    sys.exit(guarded(app))
