"""Documents for random schemas: are they valid, and what does the grammar cost beside the model?

    python tests/bench/structured.py MODEL.gguf [--documents 100] [--threads 2] [--json] [--check]

Each schema is asked for once, at temperature 0.8 with its number as the seed. A document counts as valid when
jsonschema says so. The cost is the time within the grammar as a share of the decode steps' time, in the same process.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from agentserve.engine.constraints.state import ReplyGrammar
from agentserve.engine.engine import Engine
from agentserve.engine.loading import load
from agentserve.engine.protocol import (
    Constraint,
    Finished,
    GenerateRequest,
    LoadModel,
    Message,
    RequestEvent,
    SamplingParams,
    TextDelta,
)
from agentserve.engine.sequence import Stamps
from figures import Target, finish
from random_schemas import Schema, random_schema

PROMPT = "Fill in the form with made-up values, as JSON."


@dataclass
class Figures:
    """Seconds are sums over all documents; `compile_s` is that of requests before they are queued."""

    documents: int = 0
    valid: int = 0
    tokens: int = 0
    steps: int = 0
    compile_s: float = 0.0
    decode_s: float = 0.0
    grammar_s: float = 0.0

    @property
    def share(self) -> float:
        return self.grammar_s / self.decode_s


class Writer:
    """Has one document written after the other."""

    def __init__(self, path: str, threads: int) -> None:
        spec = LoadModel("m", path, threads=threads, max_context=2048, draft_tokens=8, max_draft_tokens=8)
        self.model = load(spec, lambda _stage: None)
        self.events: list[RequestEvent] = []
        stops = self.model.prompter.tokenizer.eos_ids
        self.engine = Engine(
            self.model.runner, self.model.config, stops, self.model.block_cache(), self.events.append
        )
        # Without work the engine measures what steps cost, and knows then which drafts pay.
        while self.engine.step():
            pass
        self.figures = Figures()

    def write(self, schema: Schema, seed: int) -> str:
        request = GenerateRequest(
            "r",
            (Message("user", PROMPT),),
            sampling=SamplingParams(temperature=0.8, seed=seed),
            max_new_tokens=1500,
            constraint=Constraint("json_schema", json.dumps(schema), "response_format"),
        )
        self.events.clear()
        prompt, began = self.model.prompter.prompt(request), time.perf_counter()
        sequence = self.model.prompter.sequence(request, prompt, Stamps(time.monotonic()))
        self.figures.compile_s += time.perf_counter() - began
        self.engine.submit(sequence)
        while self.engine.load:
            self.engine.step()
        self._count(next(event for event in self.events if isinstance(event, Finished)))
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    def _count(self, end: Finished) -> None:
        self.figures.documents += 1
        self.figures.tokens += end.completion_tokens
        self.figures.steps += end.drafts.steps
        self.figures.decode_s += end.timings.decode_s


def watch(figures: Figures) -> None:
    """Counts the time within every call to a grammar."""
    for name in ("masked", "observe", "forced", "allows"):
        setattr(ReplyGrammar, name, timed(getattr(ReplyGrammar, name), figures))


def timed(call: Callable[..., Any], figures: Figures) -> Callable[..., Any]:
    def measured(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args)
        finally:
            figures.grammar_s += time.perf_counter() - began

    return measured


def is_valid(text: str, schema: Schema) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    checker = Draft202012Validator.FORMAT_CHECKER
    return bool(Draft202012Validator(schema, format_checker=checker).is_valid(document))


def measure(writer: Writer, documents: int) -> Figures:
    # The first constraint of a worker puts the vocabulary in order.
    writer.write({"type": "boolean"}, 0)
    writer.figures = Figures()
    watch(writer.figures)
    for seed in range(documents):
        schema = random_schema(random.Random(seed))
        text = writer.write(schema, seed)
        if is_valid(text, schema):
            writer.figures.valid += 1
        else:
            sys.stderr.write(f"schema {seed} is not kept: {text}\n")
    return writer.figures


def table(figures: Figures) -> list[Sequence[str]]:
    return [
        ("", "measured"),
        ("valid documents", f"{figures.valid} of {figures.documents}"),
        ("decode steps", f"{figures.steps} for {figures.tokens} tokens"),
        ("a decode step", f"{figures.decode_s / figures.steps * 1e3:.2f} ms"),
        ("the grammar, per token", f"{figures.grammar_s / figures.tokens * 1e6:.0f} µs"),
        ("compiling, per request", f"{figures.compile_s / figures.documents * 1e3:.2f} ms"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    figures = measure(Writer(options.model, options.threads), options.documents)
    targets = [
        Target("valid documents", figures.valid, figures.documents, at_least=True),
        Target("grammar, share of the decode steps", figures.share, 0.05, at_least=False),
    ]
    facts = {"model": Path(options.model).name, **asdict(figures)}
    return finish(facts, [table(figures)], targets, as_json=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
