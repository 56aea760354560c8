"""The HTTP side of `bench`: a daemon to measure, and one streamed answer with a clock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..daemon.client import ChatEnd, DaemonClient
from ..daemon.config import to_arguments
from ..daemon.errors import StartError
from ..daemon.paths import Paths, resolve_paths
from .options import Flags
from .progress import Report
from .serve import running_client


@dataclass(frozen=True, slots=True)
class Served:
    """A daemon that serves the model; `is_temporary` when it was started for the measurement."""

    client: DaemonClient
    is_temporary: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer as a client sees it. `decode_s` is the time from the first text to the end."""

    completion_tokens: int
    first_text_s: float
    decode_s: float


@contextmanager
def served(model: str, paths: Paths, flags: Flags, report: Report) -> Iterator[Served]:
    """The running daemon where it has loaded `model`, else one of its own on a free port, in a home of its own.

    A temporary one uses the same model store and compiled graphs; its start is reported. Raises StartError.
    """
    client = running_client(paths)
    if client is not None and _has_loaded(client, model):
        yield Served(client, is_temporary=False)
        return
    report("starting a temporary daemon", 0, 0)
    with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as home:
        environment = _environment(Path(home), paths)
        _run(environment, "up", *to_arguments({**flags, "model": model, "host": "127.0.0.1", "port": 0}))
        try:
            yield Served(DaemonClient.discover(resolve_paths(environment)), is_temporary=True)
        finally:
            _run(environment, "down", "--now")


def stream(client: DaemonClient, model: str, text: str, new: int) -> Stream:
    """Asks for at most `new` tokens, greedily, and reads them as they come. Raises AgentserveError.

    Without drafts: the engine loop that this is compared with has none.
    """
    begun = time.perf_counter()
    first = ended = 0.0
    end = ChatEnd("error")
    messages = [{"role": "user", "content": text}]
    options = {"max_tokens": new, "temperature": 0.0, "agentserve_draft_tokens": 0}
    for event in client.stream_chat(messages, model=model, **options):
        ended = time.perf_counter()
        first = first or ended
        if isinstance(event, ChatEnd):
            end = event
    return Stream(int(end.usage["completion_tokens"]), first - begun, ended - first)


def _has_loaded(client: DaemonClient, model: str) -> bool:
    return any(one.name == model and one.state == "ready" for one in client.status().workers)


def _environment(home: Path, paths: Paths) -> dict[str, str]:
    """A home that holds nothing but a link to the compiled graphs."""
    paths.compile_cache.mkdir(parents=True, exist_ok=True)
    own = {"AGENTSERVE_HOME": str(home), "AGENTSERVE_MODELS": str(paths.models)}
    link = resolve_paths(own).compile_cache
    link.parent.mkdir()
    link.symlink_to(paths.compile_cache)
    return {**os.environ, **own}


def _run(environment: Mapping[str, str], *arguments: str) -> None:
    """Runs a command of ours. Raises StartError with its last words."""
    command = [sys.executable, "-P", "-m", "agentserve.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise StartError(f"The daemon to measure did not start: {said[-1].removeprefix('Error: ')}")
