"""sessions: the conversations that the loaded models remember; fork, truncate and forget them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from ..daemon.client import DaemonClient
from ..daemon.paths import resolve_paths
from ..daemon.store.registry import size_text
from . import output
from .diagnostics import say
from .status import ago_text

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The session's id, as `sessions` shows it.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only of this model.")]
SaltOption = Annotated[str | None, typer.Option("--salt", help="The cache_salt of its requests.")]
JsonOption = Annotated[bool, typer.Option("--json", help="All of it as JSON.")]

sessions_app = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, help="List the sessions, or change one."
)


@sessions_app.callback()
def list_sessions(
    context: typer.Context, model: ModelOption = None, salt: SaltOption = None, json: JsonOption = False
) -> None:
    """List the sessions of the loaded models, the latest used first."""
    if context.invoked_subcommand is not None:
        return
    listed = _client().sessions(model, salt)
    if json:
        output.json(listed)
    elif not listed["sessions"]:
        say("No sessions yet; each conversation is one")
    else:
        heads = ("ID", "TOKENS", "SIZE", "TIER", "HITS", "LAST ACTION", "LAST USED", "MODEL")
        spare = ("TIER", "HITS", "LAST ACTION", "SIZE", "MODEL", "LAST USED")
        output.table(heads, (_row(one) for one in listed["sessions"]), spare)


@sessions_app.command("show")
def show(
    id: IdArgument, model: ModelOption = None, salt: SaltOption = None, json: JsonOption = False
) -> None:
    """Show all that is known of a session."""
    _tell(_client().session(id, model, salt), json=json)


@sessions_app.command("fork")
def fork(
    id: IdArgument,
    name: Annotated[str | None, typer.Option("--as", metavar="ID", help="The id of the fork.")] = None,
    model: ModelOption = None,
    salt: SaltOption = None,
    json: JsonOption = False,
) -> None:
    """Make a second session of the same tokens. Prints its id, for agentserve_session_id."""
    made = _client().fork_session(id, name, model, salt)
    if json:
        output.json(made)
    else:
        say(f"{id} was forked at {made['tokens']:,} tokens")
        output.line(made["id"])


@sessions_app.command("truncate")
def truncate(
    id: IdArgument,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Keep the first of them.")] = None,
    drop_turns: Annotated[
        int | None, typer.Option("--drop-turns", min=1, help="Take back the last user turns.")
    ] = None,
    model: ModelOption = None,
    salt: SaltOption = None,
    json: JsonOption = False,
) -> None:
    """Cut a session, to so many tokens or by so many turns."""
    if (tokens is None) == (drop_turns is None):
        raise typer.BadParameter("give either --tokens or --drop-turns", param_hint="--tokens")
    cut = _client().truncate_session(id, {"tokens": tokens, "drop_turns": drop_turns}, model, salt)
    if json:
        output.json(cut)
    else:
        say(f"{id} has {cut['tokens']:,} tokens now")


@sessions_app.command("rm")
def remove(id: IdArgument, model: ModelOption = None, salt: SaltOption = None) -> None:
    """Forget a session; what was computed for it is still reused."""
    gone = _client().delete_session(id, model, salt)
    say(f"{gone['id']} is forgotten; it had {gone['tokens']:,} tokens")


def _client() -> DaemonClient:
    return DaemonClient.discover(resolve_paths())


def _tell(one: Mapping[str, Any], *, json: bool) -> None:
    if json:
        output.json(one)
    else:
        output.facts(_facts(one))


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    tokens, size, hits = str(one["tokens"]), size_text(one["bytes"]), str(one["hits"])
    used = "now" if one["running"] else ago_text(one["last_used"])
    return (one["id"], tokens, size, one["tier"], hits, one["last_action"], used, one["model"])


def _tokens_text(tokens: int, turns: int) -> str:
    """How long a session is, and its turns where requests have shown where they begin."""
    known = f" in {turns} known turn{'s' if turns > 1 else ''}" if turns else ""
    return f"{tokens:,}{known}"


def _facts(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", one["id"]
    yield "model", one["model"]
    yield "tokens", _tokens_text(one["tokens"], one["turns"])
    yield "size", size_text(one["bytes"])
    yield "tier", f"{one['tier']}, {one['pool_tokens']:,} tokens in the pool"
    yield "hits", f"{one['hits']}"
    yield "last action", one["last_action"]
    yield "last used", "now" if one["running"] else ago_text(one["last_used"])
    yield "created", ago_text(one["created"])
