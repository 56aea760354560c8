"""Measures the engine loop without HTTP: `python -P -m agentserve.engine.bench`, driven over its standard streams.

One JSON object a line each way. The first line names the model by fields of `LoadModel`; every later one is a
command. An answer with `error` ends the process.

    {"name": …, "model_path": …, …}            → facts of the loaded model, see `facts`
    {"do": "passage", "tokens": n, "index": i}  → {"text": …, "tokens": […]}: the i-th stretch of real text
    {"do": "complete", "tokens": […], "new": d} → timings of d tokens after exactly these, see `Bench.measure`
    {"do": "chat", "text": …, "new": d}         → the same for one user message through the chat template

Generation is greedy and goes on over end-of-turn tokens, so that each measurement has its full length. The text
is the source code of this package: repeated or random tokens would make some engines look faster than they are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from .engine import Engine
from .loading import LoadedModel, load
from .model_errors import LoadError, ModelFileError
from .prompts.prompting import PromptError
from .protocol import Finished, GenerateRequest, LoadModel, Message, RequestEvent, SamplingParams
from .sequence import Stamps

# Starts of neighbouring passages lie this many tokens apart; prime, so that they spread over the text.
_STRIDE = 7919

Answer = dict[str, Any]


class Bench:
    """One loaded model and an engine on it, run by hand: a request at a time, on the calling thread."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._end: Finished | None = None
        self._count = 0
        nothing_stops = frozenset[int]()
        self._engine = Engine(model.runner, model.config, nothing_stops, model.block_cache(), self._note)
        self._corpus = model.prompter.tokenizer.encode(package_text())

    def passage(self, tokens: int, index: int) -> Answer:
        """A stretch of `tokens` tokens of the text that differs from index to index. Raises ValueError."""
        if not 0 < tokens <= len(self._corpus):
            raise ValueError(f"a passage has 1 to {len(self._corpus)} tokens, not {tokens}")
        start = index * _STRIDE % (len(self._corpus) - tokens + 1)
        chosen = self._corpus[start : start + tokens]
        return {"text": self._model.prompter.tokenizer.decode(chosen), "tokens": chosen}

    def measure(self, new: int, *, text: str = "", tokens: tuple[int, ...] = ()) -> Answer:
        """Generates `new` tokens after a user message or after the tokens, and says how long it took.

        `prefill_s` ends with the first token, `decode_s` is the time of those after it. Nothing of an earlier
        measurement is reused. Raises PromptError when the prompt does not fit the context.
        """
        self._count += 1
        request = GenerateRequest(
            request_id=str(self._count),
            messages=(Message("user", text),) if text else (),
            prompt=None if text else tokens,
            sampling=SamplingParams(temperature=0.0),
            max_new_tokens=new,
            namespace=f"bench-{self._count}",
        )
        end = self._run(request)
        return {
            "prompt_tokens": end.prompt_tokens,
            "completion_tokens": end.completion_tokens,
            "cached_tokens": end.cached_tokens,
            "first_token_s": end.timings.first_token_s,
            "prefill_s": end.timings.prefill_s,
            "decode_s": end.timings.decode_s,
        }

    def _run(self, request: GenerateRequest) -> Finished:
        # A worker too has time between two requests of one client.
        while self._engine.step():
            pass
        stamps, self._end = Stamps(time.monotonic()), None
        prompter = self._model.prompter
        self._engine.submit(prompter.sequence(request, prompter.prompt(request), stamps))
        while self._end is None:
            self._engine.step()
        return self._end

    def _note(self, event: RequestEvent) -> None:
        if isinstance(event, Finished):
            self._end = event


def package_text() -> str:
    """The source code of this package, file after file."""
    root = Path(__file__).parents[1]
    files = (file for folder in ("engine", "daemon", "cli") for file in sorted((root / folder).rglob("*.py")))
    return "\n".join(file.read_text("utf-8") for file in files)


def facts(model: LoadedModel, load_s: float) -> Answer:
    """What was loaded, how it is held, and the memory of this process in bytes."""
    info, memory = model.info, psutil.Process().memory_info()
    return {
        "name": info.name,
        "architecture": info.architecture,
        "device": info.device,
        "parameters": info.parameters,
        "weight_bytes": info.weight_bytes,
        "context_length": info.context_length,
        "exact": info.exact,
        "load_s": load_s,
        "compile_cache_hit": model.cache_hit,
        "rss_bytes": memory.rss,
        "runtime": _runtime(),
        "pid": os.getpid(),
    }


def _runtime() -> str:
    """The version of OpenVINO; empty where the model did without it."""
    module = sys.modules.get("openvino")
    return f"OpenVINO {module.get_version()}" if module else ""


def answer(bench: Bench, command: Mapping[str, Any]) -> Answer:
    """Carries out one command. Raises ValueError for one that does not exist."""
    match command["do"]:
        case "passage":
            return bench.passage(command["tokens"], command["index"])
        case "complete":
            return bench.measure(command["new"], tokens=tuple(command["tokens"]))
        case "chat":
            return bench.measure(command["new"], text=command["text"])
        case other:
            raise ValueError(f"unknown command {other!r}")


def _load(spec: LoadModel) -> tuple[LoadedModel, float]:
    begun = time.perf_counter()
    model = load(spec, lambda _stage: None)
    return model, time.perf_counter() - begun


def _say(value: Answer) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Serves commands until standard input ends; the exit code is 1 after an error."""
    try:
        model, load_s = _load(LoadModel(**json.loads(sys.stdin.readline())))
        bench = Bench(model)
        _say(facts(model, load_s))
        for line in sys.stdin:
            _say(answer(bench, json.loads(line)))
    except (ModelFileError, LoadError, PromptError) as error:
        _say({"error": error.message})
        return 1
    except (RuntimeError, ValueError, MemoryError) as error:
        _say({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Native thread pools may wait for ever in their destructors.
    os._exit(code)
