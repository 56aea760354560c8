"""pin, pins and unpin: prefixes that stay in memory and on disk."""

from __future__ import annotations

import json as json_library
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..daemon.client import DaemonClient
from ..daemon.paths import resolve_paths
from ..daemon.store.registry import size_text
from . import output
from .diagnostics import say
from .status import ago_text, duration_text

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pin's name.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Instead of the daemon's model.")]
SaltOption = Annotated[str | None, typer.Option("--salt", help="The cache_salt of the requests it is for.")]
JsonOption = Annotated[bool, typer.Option("--json", help="All of it as JSON.")]

pins_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, help="List the pins, or show one.")


def pin(
    name: NameArgument,
    request: Annotated[
        str | None, typer.Option("--from", metavar="ID", help="Pin the prompt of this recent request.")
    ] = None,
    messages: Annotated[
        Path | None,
        typer.Option(
            "--messages",
            exists=True,
            dir_okay=False,
            help="Pin these: a JSON list of messages, or a chat request.",
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", exists=True, dir_okay=False, help="Pin the text of this file.")
    ] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Pin no more than these.")] = None,
    model: ModelOption = None,
    salt: SaltOption = None,
    ttl: Annotated[float | None, typer.Option("--ttl", help="Seconds until the pin goes by itself.")] = None,
    json: JsonOption = False,
) -> None:
    """Keep a prefix in memory and on disk. Without a source: what the last requests have in common."""
    if sum(source is not None for source in (request, messages, text)) > 1:
        raise typer.BadParameter("--from, --messages and --text exclude each other", param_hint="--from")
    body: dict[str, Any] = {"name": name, "model": model, "salt": salt, "tokens": tokens, "ttl": ttl}
    body["from"] = request
    if text is not None:
        body["text"] = text.read_text("utf-8")
    if messages is not None:
        body |= _chat(messages)
    answer = _client().pin({key: value for key, value in body.items() if value is not None})
    if json:
        output.json(answer)
    else:
        _say_pinned(answer)


@pins_app.callback()
def list_pins(
    context: typer.Context, model: ModelOption = None, salt: SaltOption = None, json: JsonOption = False
) -> None:
    """List the pins of the loaded models."""
    if context.invoked_subcommand is not None:
        return
    listed = _client().pins(model, salt)
    if json:
        output.json(listed)
    elif not listed["pins"]:
        say("No pins yet; `agentserve pin NAME` makes one")
    else:
        heads = ("NAME", "TOKENS", "SIZE", "TIER", "HITS", "LAST USED", "MODEL")
        spare = ("HITS", "TIER", "LAST USED", "MODEL", "SIZE")
        output.table(heads, (_row(one) for one in listed["pins"]), spare)


@pins_app.command("show")
def show(
    name: NameArgument, model: ModelOption = None, salt: SaltOption = None, json: JsonOption = False
) -> None:
    """Show all that is known of a pin."""
    found = _client().pin_named(name, model, salt)
    if json:
        output.json(found)
    else:
        output.facts(_facts(found))


def unpin(name: NameArgument, model: ModelOption = None, salt: SaltOption = None) -> None:
    """Let a pin go, in memory and on disk."""
    gone = _client().unpin(name, model, salt)
    say(f"{gone['name']} is not pinned any more; it held {size_text(gone['bytes'])}")


def _client() -> DaemonClient:
    return DaemonClient.discover(resolve_paths())


def _chat(file: Path) -> dict[str, Any]:
    try:
        content = json_library.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not valid JSON: {error}", param_hint="--messages") from None
    if isinstance(content, list):
        return {"messages": content}
    if not isinstance(content, dict) or "messages" not in content:
        raise typer.BadParameter(f"{file} holds no messages", param_hint="--messages")
    return {key: content[key] for key in ("messages", "tools", "chat_template_kwargs") if key in content}


def _say_pinned(answer: Mapping[str, Any]) -> None:
    new = answer["tokens"] - answer["cached_tokens"]
    computed = f"{new:,} of them computed now" if new else "all of them known"
    size = size_text(answer["bytes"])
    say(f"{answer['name']} is pinned: {answer['tokens']:,} tokens, {size}, {computed}")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    size, used = size_text(one["bytes"]), ago_text(one["last_used"])
    return (one["name"], str(one["tokens"]), size, one["tier"], str(one["hits"]), used, one["model"])


def _facts(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", one["name"]
    yield "model", one["model"]
    yield "tokens", f"{one['tokens']:,}"
    yield "size", size_text(one["bytes"])
    yield "tier", "pool and disk" if one["tier"] == "pool" and one["on_disk"] else one["tier"]
    yield "hits", f"{one['hits']}"
    yield "last used", ago_text(one["last_used"])
    yield "created", ago_text(one["created"])
    if one["expires"] is not None:
        yield "expires", f"in {duration_text(max(0.0, one['expires'] - time.time()))}"
