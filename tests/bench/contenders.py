"""Engines to measure side by side: each in a process of its own, kept loaded, one measuring at a time.

All get the same token ids, generate greedily over end-of-turn tokens, and reuse nothing of an earlier request.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

START_S = 300.0


class ContenderError(Exception):
    """A contender did not start, or ended."""


@dataclass(frozen=True)
class Sample:
    """One measurement: seconds to the first token, and seconds for each token after it.

    `others` is the share of all cores that other processes took meanwhile.
    """

    prefill_s: float
    token_s: float
    others: float = 0.0


class Contender(Protocol):
    """An engine that is loaded and waits."""

    @property
    def pid(self) -> int: ...

    @property
    def version(self) -> str: ...

    def measure(self, tokens: Sequence[int], new: int) -> Sample:
        """Generates `new` tokens after `tokens`. Raises ContenderError."""
        ...

    def close(self) -> None: ...


class LinesContender:
    """A process that speaks the JSON lines of `agentserve.engine.bench`."""

    def __init__(self, command: Sequence[str], spec: Mapping[str, Any], log: Path) -> None:
        """`spec` is the first line sent. Raises ContenderError when the process does not load it."""
        self._command, self._log = shlex.join(command), log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self.facts = self.ask(spec)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def version(self) -> str:
        return str(self.facts.get("runtime", ""))

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a command and waits for its answer. Raises ContenderError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"it ended: {_last_line(self._log)}"}
        if "error" in answer:
            raise ContenderError(f"{self._command}: {answer['error']}")
        return answer

    def measure(self, tokens: Sequence[int], new: int) -> Sample:
        answer = self.ask({"do": "complete", "tokens": list(tokens), "new": new})
        assert answer["completion_tokens"] == new, answer
        assert not answer.get("cached_tokens"), answer
        return Sample(answer["prefill_s"], answer["decode_s"] / (new - 1))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(START_S)


class LlamaServer:
    """llama.cpp's server on a free port of this machine; the times are those that it reports itself."""

    def __init__(self, program: Path, gguf: Path, threads: int, context: int, log: Path) -> None:
        """Returns when the model is loaded. Raises ContenderError."""
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        arguments = f"-t {threads} -tb {threads} -np 1 -c {context} --no-webui --host 127.0.0.1 --port {port}"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(program), "-m", str(gguf), *arguments.split()], stdout=output, stderr=output
            )
        self._await_health(log)
        self._version = _llama_version(program)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def version(self) -> str:
        return self._version

    def measure(self, tokens: Sequence[int], new: int) -> Sample:
        body = {
            "prompt": list(tokens),
            "n_predict": new,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "ignore_eos": True,
        }
        timings = self._post("/completion", body)["timings"]
        assert timings["prompt_n"] == len(tokens), timings
        assert timings["predicted_n"] == new, timings
        # The first token comes out of the prompt's pass: `predicted_ms` is the time of the passes after it.
        return Sample(timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000 / (new - 1))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(START_S)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=START_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _await_health(self, log: Path) -> None:
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(self._url + "/health", timeout=5).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise ContenderError(f"llama-server did not start: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "without a word"


def _llama_version(program: Path) -> str:
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version: (.*)", done.stdout + done.stderr)
    return f"llama.cpp {found[1]}" if found else "llama.cpp"


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
