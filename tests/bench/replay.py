"""A day of an agent against any OpenAI-compatible server: how much of its prompts had to be computed?

    python tests/bench/replay.py URL [--model M] [--tokens MODEL.gguf] [--restart-command CMD]

Plays the script of `agent_day.py` by streaming chat completions: one agent with a system text and tools of 3,000
tokens, ten tool turns with the contents of files, calls for titles in between, three sub-agents side by side, a
retry, an edit, and a turn after a restart. It fits a context of 8,192 tokens.

Printed is, for each part of the day, the time, the sum of the times to the first token, the tokens that the server
says it computed (`usage.prompt_tokens_details.cached_tokens`, or llama.cpp's `timings`), and the smallest number
possible (`least_work.py`): exact with `--tokens`, which names the GGUF file that is served, or `mock`; else by the
characters of the texts. The history holds the replies that the server gave, as a real client's does, so that going
on behind an own reply counts; `--scripted` puts the same words there for every server, which makes the prompts
equal and the replies of no use; their digest tells whether two servers gave the same ones. Three short requests before the day measure how long tokens are.

`--restart-command` is run by the shell, and its time is not counted; without it, the last part is left out.

Target: at most 1.03 times the smallest number possible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from agent_day import SYSTEM_TOKENS, TOOLS, Day, Request, Texts
from agentserve.engine.model_errors import ModelFileError
from figures import Target, finish
from least_work import LeastWork, text_of

from completions import Answer, Server, ServerError

MOST = 1.03
RESTART_S = 120.0
OWN_WORDS = "I have read it. Now I go on with the next part of the work."
_PROBE_TOKENS = 1000


@dataclass(frozen=True)
class Played:
    """One request of the day; `waited_s` is the time of all that were sent with it."""

    phase: str
    prompt_tokens: int
    prefilled: int | None
    least: int
    first_s: float
    waited_s: float
    reply: str


class Player:
    """Sends the requests of a day and keeps what became of them."""

    def __init__(self, server: Server, least: LeastWork, reply_tokens: int) -> None:
        self.played: list[Played] = []
        self._server = server
        self._least = least
        self._reply_tokens = reply_tokens

    def ask(self, phase: str, requests: Sequence[Request]) -> list[str]:
        """Sends requests side by side; returns the replies."""
        begun = time.perf_counter()
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = list(threads.map(self._complete, requests))
        waited = time.perf_counter() - begun
        for request, answer in zip(requests, answers, strict=True):
            least = self._least.take(request, answer)
            share = waited / len(requests)
            self.played.append(
                Played(
                    phase,
                    answer.prompt_tokens,
                    answer.prefilled,
                    least,
                    answer.first_s,
                    share,
                    answer.text,
                )
            )
        return [answer.text for answer in answers]

    def _complete(self, request: Request) -> Answer:
        return self._server.ask(body(request, self._reply_tokens))


def body(request: Request, reply_tokens: int) -> dict[str, Any]:
    """The request as JSON, but for what all have in common."""
    tools = {"tools": request.tools} if request.tools else {}
    return {"messages": request.messages, "max_tokens": reply_tokens, **tools}


@dataclass(frozen=True)
class Probes:
    """What short requests tell of the server's model: its frame of a message, its tools, the length of tokens."""

    seen: tuple[tuple[Request, Answer], ...]
    tools_tokens: int
    density: float

    @classmethod
    def of(cls, server: Server) -> Probes:
        """Asks the server. Raises ServerError and HTTPError."""
        guess = Texts(4.0)
        text = guess.code("probe", _PROBE_TOKENS) + guess.rules("probe", _PROBE_TOKENS)
        asked = [_single("."), _single(".", TOOLS), _single(text)]
        answers = [server.ask(body(request, 1)) for request in asked]
        frame, tools, whole = (answer.prompt_tokens for answer in answers)
        return cls(tuple(zip(asked, answers, strict=True)), tools - frame, len(text) / (whole - frame))


def _single(text: str, tools: tuple[dict[str, Any], ...] = ()) -> Request:
    return Request(({"role": "user", "content": text},), tools)


def played(server: Server, options: argparse.Namespace) -> list[Played]:
    probes = Probes.of(server)
    least = LeastWork(text_of(options.tokens, with_tools=probes.tools_tokens > 0))
    for request, answer in probes.seen:
        least.take(request, answer)
    player = Player(server, least, options.reply_tokens)
    texts = Texts(probes.density, options.scale, options.seed)
    own_words = OWN_WORDS if options.scripted else None
    day = Day(texts, SYSTEM_TOKENS - probes.tools_tokens, player.ask, own_words)

    def restart() -> None:
        subprocess.run(options.restart_command, shell=True, check=True, stdout=subprocess.DEVNULL)
        server.await_ready(RESTART_S)

    day.play(restart if options.restart_command else None)
    return player.played


@dataclass(frozen=True)
class Sum:
    """Several requests together. `prefilled` is None when the server does not say."""

    requests: int
    prompt_tokens: int
    prefilled: int | None
    least: int
    first_s: float
    wall_s: float

    @property
    def ratio(self) -> float | None:
        return None if self.prefilled is None else self.prefilled / self.least


def summed(parts: Sequence[Played]) -> Sum:
    computed = [one.prefilled for one in parts if one.prefilled is not None]
    return Sum(
        requests=len(parts),
        prompt_tokens=sum(one.prompt_tokens for one in parts),
        prefilled=sum(computed) if len(computed) == len(parts) else None,
        least=sum(one.least for one in parts),
        first_s=sum(one.first_s for one in parts),
        wall_s=sum(one.waited_s for one in parts),
    )


def digest(parts: Sequence[Played]) -> str:
    """Equal for two days with the same replies; the first 16 hexadecimal digits of their SHA-256."""
    replies = json.dumps([one.reply for one in parts])
    return hashlib.sha256(replies.encode()).hexdigest()[:16]


def rows(parts: Sequence[Played]) -> Iterator[tuple[str, ...]]:
    yield "part", "requests", "prompt tokens", "prefilled", "least", "ratio", "first tokens s", "wall s"
    for phase in dict.fromkeys(one.phase for one in parts):
        yield _row(phase, summed([one for one in parts if one.phase == phase]))
    yield _row("all", summed(parts))


def _row(name: str, total: Sum) -> tuple[str, ...]:
    return (
        name,
        str(total.requests),
        str(total.prompt_tokens),
        "not told" if total.prefilled is None else str(total.prefilled),
        str(total.least),
        "" if total.ratio is None else f"{total.ratio:.3f}",
        f"{total.first_s:.2f}",
        f"{total.wall_s:.2f}",
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("url", help="the server's address, without /v1")
    parser.add_argument("--model", help="the first that the server lists by default")
    parser.add_argument("--tokens", metavar="GGUF", help="the served file, or mock, to count exactly")
    parser.add_argument("--reply-tokens", type=int, default=24, help="at most so many for each reply")
    parser.add_argument("--scale", type=float, default=1.0, help="makes all texts longer or shorter")
    parser.add_argument(
        "--seed", type=int, default=0, help="another day; a server remembers those it has seen"
    )
    parser.add_argument("--scripted", action="store_true", help="the same words in place of all replies")
    parser.add_argument("--restart-command", metavar="CMD", help="restarts the server")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the target is missed")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        server = Server(options.url, options.model)
        parts = played(server, options)
    except (ServerError, ModelFileError, httpx.HTTPError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"replay: {error}\n")
        return 2
    total = summed(parts)
    counted = f"tokens of {options.tokens}" if options.tokens else "characters of the texts"
    about = [("model", server.model), ("the least is counted by", counted), ("replies", digest(parts))]
    if not options.restart_command:
        about.append(("restart", "left out: no --restart-command"))
    targets = []
    if total.ratio is not None:
        targets.append(Target("prefilled over the least possible", total.ratio, MOST, at_least=False))
    elif options.check:
        sys.stderr.write("replay: the server does not say how many tokens it computed\n")
        return 2
    facts = {
        "model": server.model,
        "replies": digest(parts),
        "total": asdict(total),
        "requests": [asdict(one) for one in parts],
    }
    return finish(facts, [about, list(rows(parts))], targets, as_json=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
