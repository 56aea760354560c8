"""The engine in a process of its own, without HTTP: the child that `bench` measures in."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from ..daemon.errors import AgentserveError

Answer = dict[str, Any]


class BenchEngine:
    """Speaks the lines of `agentserve.engine.bench`. `facts` is what it said about the loaded model."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str], spec: Mapping[str, Any]) -> None:
        """Loads what `spec` names; `errors` is what the process writes its last words to.

        Raises AgentserveError with the engine's reason, as every method does.
        """
        self._process = process
        self._errors = errors
        self.facts = self._ask(spec)

    def passage(self, tokens: int, index: int) -> Answer:
        """`text` and `tokens` of a stretch of real text, another one for each index."""
        return self._ask({"do": "passage", "tokens": tokens, "index": index})

    def complete(self, tokens: list[int], new: int) -> Answer:
        """Timings of `new` tokens after exactly these."""
        return self._ask({"do": "complete", "tokens": tokens, "new": new})

    def chat(self, text: str, new: int) -> Answer:
        """Timings of `new` tokens after one message of a user."""
        return self._ask({"do": "chat", "text": text, "new": new})

    def _ask(self, command: Mapping[str, Any]) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise AgentserveError(f"The engine ended while it was measured: {self._last_words()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise AgentserveError(f"The engine can't be measured: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"


@contextmanager
def bench_engine(spec: Mapping[str, Any]) -> Iterator[BenchEngine]:
    """A loaded engine, which ends with the block. `spec` holds fields of the worker's load message."""
    command = [sys.executable, "-P", "-m", "agentserve.engine.bench"]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        ) as process,
    ):
        try:
            yield BenchEngine(process, errors, spec)
        except BaseException:
            # A measurement in progress is of no use any more.
            process.kill()
            raise
