"""One command of an agent, what it asked of the daemon meanwhile, and what is wrong with that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentserve.daemon.snapshot import RequestRecord
from recorder import Exchange

_LONGEST_S = 600.0
_SHOWN = 30
_GOOD_ENDS = frozenset({"done", "cancelled"})


@dataclass(frozen=True)
class Ran:
    """How a command ended: `exit_code` is None when it was stopped after ten minutes."""

    exit_code: int | None
    output: str
    seconds: float


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ran:
    """Runs a command in `folder` with this environment alone and without input; its children end with it."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, exit_code = process.communicate(timeout=_LONGEST_S)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, exit_code = process.communicate()[0], None
    return Ran(exit_code, output, time.monotonic() - began)


@dataclass(frozen=True)
class Turn:
    """A command that ran, its exchanges with the daemon, and the daemon's records of those that asked for text."""

    agent: str
    model: str
    kind: str
    ran: Ran
    exchanges: Sequence[Exchange]
    records: Sequence[RequestRecord]

    @property
    def bodies(self) -> list[Any]:
        """The bodies of all requests that have one."""
        return [json.loads(exchange.body) for exchange in self.exchanges if exchange.body]

    def faults(self) -> Iterator[str]:
        """What makes the turn a failure, whatever the model said."""
        if self.ran.exit_code != 0:
            yield "timed out" if self.ran.exit_code is None else f"exit code {self.ran.exit_code}"
        if not self.records:
            yield "asked for nothing"
        for exchange in self.exchanges:
            if exchange.status >= 400:
                yield f"{exchange.status} for {exchange.path}: {exchange.answer[:300].decode(errors='replace')}"
        for record in self.records:
            if record.state not in _GOOD_ENDS:
                yield f"request {record.number} {record.state}: {record.reason or record.error}"
        if not self._is_shown():
            yield "no reply was shown"

    def _is_shown(self) -> bool:
        """Whether the output has the beginning of one of the replies, apart from how its lines are broken."""
        output = _squeezed(self.ran.output)
        replies = (_squeezed(reply_text(bytes(exchange.answer))) for exchange in self.exchanges)
        return any(reply and reply[:_SHOWN] in output for reply in replies)

    def row(self, verdict: str) -> tuple[str, ...]:
        """The turn as cells of a table, in the order of HEADINGS."""
        statuses = Counter(exchange.status for exchange in self.exchanges)
        cancelled = sum(record.state == "cancelled" for record in self.records)
        return (
            self.agent,
            self.model,
            self.kind,
            str(len(self.exchanges)),
            " ".join(f"{status}×{count}" for status, count in sorted(statuses.items())),
            str(cancelled),
            str(sum(record.prompt_tokens or 0 for record in self.records)),
            str(sum(record.cached_tokens or 0 for record in self.records)),
            str(sum(record.completion_tokens for record in self.records)),
            f"{self.ran.seconds:.1f}",
            str(self.ran.exit_code),
            verdict,
        )


HEADINGS = (
    "agent",
    "model",
    "turn",
    "requests",
    "statuses",
    "cancelled",
    "prompt",
    "cached",
    "reply",
    "seconds",
    "exit",
    "verdict",
)


def reply_text(answer: bytes) -> str:
    """The text of an answer, whole or streamed; empty if it has none."""
    text = answer.decode(errors="replace")
    if not text.startswith("data: "):
        return _said(text, "message")
    pieces = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {"))
    return "".join(_said(piece, "delta") for piece in pieces)


def _said(text: str, key: str) -> str:
    try:
        choices = json.loads(text).get("choices", [])
    except json.JSONDecodeError:
        # The agent hung up in the middle of it.
        return ""
    return "".join(choice[key].get("content") or "" for choice in choices)


def _squeezed(text: str) -> str:
    return "".join(text.split())
