"""run: asks a model one question, or talks with it."""

from __future__ import annotations

import io
import re
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated

import typer

from ..daemon.client import ChatEnd, ChatThought, DaemonClient
from ..daemon.errors import AgentserveError
from ..daemon.paths import resolve_paths
from . import output
from .diagnostics import say
from .serve import running_client, start_daemon, wait_until_ready

Turn = dict[str, str]
# How Python keeps a byte that could not be decoded.
_STRAY_BYTE = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class _Asking:
    """What stays the same over the turns of a conversation."""

    client: DaemonClient
    model: str
    max_tokens: int | None
    temperature: float | None
    timings: bool


def run(
    question: Annotated[
        str | None, typer.Argument(metavar="[QUESTION]", help="Without it, a conversation begins.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Instead of the daemon's model.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Limit of the answer.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=2, help="0 is deterministic.")
    ] = None,
    timings: Annotated[bool, typer.Option("--timings", help="Say how fast it was.")] = False,
) -> None:
    """Ask one question, or talk with the model. Text piped in is added to the question.

    Starts the daemon if none is running.
    """
    text = _question(question)
    client = _client()
    asking = _Asking(client, model or client.status().default_model, max_tokens, temperature, timings)
    if text:
        _answer(asking, [{"role": "user", "content": text}], [])
    else:
        _converse(asking)


def _question(question: str | None) -> str | None:
    """The question with what is piped in below it; None means a conversation."""
    asked = None if question is None else _readable(question, "the question")
    if sys.stdin is not None and sys.stdin.isatty():
        return asked
    text = "\n\n".join(part for part in (asked, _piped()) if part)
    if not text:
        raise typer.BadParameter("there is no question, and nothing was piped in", param_hint="QUESTION")
    return text


def _piped() -> str:
    if not isinstance(sys.stdin, io.TextIOWrapper):
        # Somebody closed it.
        return ""
    sys.stdin.reconfigure(errors="surrogateescape")
    return _readable(sys.stdin.read().strip(), "what was piped in")


def _readable(text: str, what: str) -> str:
    """The text with U+FFFD in place of each byte that is no text; says so. A model reads past a few of them."""
    replaced, count = _STRAY_BYTE.subn("\ufffd", text)
    if count:
        bytes_text = "1 byte" if count == 1 else f"{count} bytes"
        say(f"Not UTF-8: {bytes_text} of {what}, replaced by \ufffd; iconv converts a file")
    return replaced


def _client() -> DaemonClient:
    paths = resolve_paths()
    client = running_client(paths)
    if client is None:
        say("agentserve is not running; starting it")
        return start_daemon(paths, {})
    wait_until_ready(client)
    return client


def _converse(asking: _Asking) -> None:
    say(f"Talking with {asking.model}. Ctrl-C stops an answer, Ctrl-D ends.")
    history: list[Turn] = []
    while (text := output.ask("> ")) is not None:
        if text:
            _turn(asking, history, _readable(text, "the question"))


def _turn(asking: _Asking, history: list[Turn], text: str) -> None:
    """One question of a conversation. What came of an answer is kept; a turn without any leaves no trace."""
    asked: Turn = {"role": "user", "content": text}
    parts: list[str] = []
    try:
        _answer(asking, [*history, asked], parts)
    except AgentserveError as error:
        say(f"Error: {error}")
    except KeyboardInterrupt:
        output.line()
        say("(stopped)")
    if parts:
        history += [asked, {"role": "assistant", "content": "".join(parts)}]


def _answer(asking: _Asking, messages: list[Turn], parts: list[str]) -> None:
    """Streams an answer to standard output; `parts` holds what came, also when it ends on an exception."""
    started = time.monotonic()
    first_s = 0.0
    is_thinking = False
    end = ChatEnd("error")
    events = asking.client.stream_chat(
        messages, model=asking.model, max_tokens=asking.max_tokens, temperature=asking.temperature
    )
    with closing(events):
        for event in events:
            if isinstance(event, ChatEnd):
                end = event
                continue
            first_s = first_s or time.monotonic() - started
            if isinstance(event, ChatThought):
                if not is_thinking:
                    say("(thinking)")
                is_thinking = True
                continue
            parts.append(event.text)
            output.piece(event.text)
    output.line()
    _comment(asking, end, first_s, time.monotonic() - started)


def _comment(asking: _Asking, end: ChatEnd, first_s: float, total_s: float) -> None:
    if end.finish_reason == "length":
        say("(the answer was cut at its token limit)")
    if asking.timings:
        say(timings_text(int(end.usage.get("completion_tokens", 0)), first_s, total_s))


def timings_text(tokens: int, first_s: float, total_s: float) -> str:
    """The time to the first text, and the speed of the tokens that came after it."""
    decode_s = total_s - first_s
    speed = (
        f"{(tokens - 1) / decode_s:.1f} tokens/s" if tokens > 1 and decode_s > 0 else "too short to measure"
    )
    return f"first token after {first_s:.2f} s, then {speed} ({tokens} tokens)"
