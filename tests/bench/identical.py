"""Whether drafts change a text: 50 prompts, every draft limit, greedy and seeded, free and bound by a JSON schema.

    python tests/bench/identical.py MODEL.gguf [--prompts 50] [--tokens 32] [--threads 2] [--json] [--check]

The model runs in exact mode, and each draft is verified whole, whether it pays or not: that is where a mistake would
show. Half of the prompts are questions, half are beginnings of source code. Each reply is compared, token by token,
with that of the same engine without drafts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from agentserve.engine.bench import package_text
from agentserve.engine.drafting import speculation
from agentserve.engine.drafting.length import Promise
from agentserve.engine.engine import Engine
from agentserve.engine.loading import LoadedModel, load
from agentserve.engine.protocol import (
    Constraint,
    Failed,
    GenerateRequest,
    LoadModel,
    Message,
    RequestEvent,
    SamplingParams,
)
from agentserve.engine.sequence import Sequence as Running
from agentserve.engine.sequence import Stamps
from figures import Target, finish
from random_schemas import random_schema

LIMITS = (1, 2, 4, 8, 16)
SAMPLINGS = {"greedy": SamplingParams(temperature=0.0), "seeded": SamplingParams(temperature=0.8, seed=7)}
_TASKS = (
    "Explain",
    "Repeat three times",
    "Write a poem about",
    "List five kinds of",
    "Translate into French:",
)
_THINGS = ("a lighthouse", "the word queue", "bread", "a stack of blocks", "the sea at night")


@dataclass(frozen=True, slots=True)
class Case:
    """A way of asking: how tokens are chosen, and whether a schema binds the reply."""

    sampling: str
    is_bound: bool

    @property
    def name(self) -> str:
        return f"{self.sampling}, {'JSON schema' if self.is_bound else 'free'}"


CASES = tuple(Case(sampling, is_bound) for is_bound in (False, True) for sampling in SAMPLINGS)


def questions(model: LoadedModel, count: int) -> Iterator[GenerateRequest]:
    """Half of them chats, half raw beginnings of source code."""
    chats = itertools.cycle(itertools.product(_TASKS, _THINGS))
    corpus = model.prompter.tokenizer.encode(package_text())
    for index in range(count):
        if index % 2:
            begin = index * 1009 % (len(corpus) - 200)
            yield GenerateRequest(f"{index}", prompt=tuple(corpus[begin : begin + 150]))
        else:
            task, thing = next(chats)
            yield GenerateRequest(f"{index}", (Message("user", f"{task} {thing}."),))


def asked(request: GenerateRequest, case: Case, index: int, tokens: int) -> GenerateRequest:
    schema = Constraint("json_schema", json.dumps(random_schema(random.Random(index))), "response_format")
    return replace(
        request,
        sampling=SAMPLINGS[case.sampling],
        max_new_tokens=tokens,
        constraint=schema if case.is_bound else None,
    )


def replies(model: LoadedModel, requests: Sequence[GenerateRequest], limit: int) -> list[tuple[int, ...]]:
    """The tokens of each reply, from an engine that has seen none of the requests. Raises RuntimeError."""

    def note(event: RequestEvent) -> None:
        if isinstance(event, Failed):
            raise RuntimeError(event.message)  # noqa: TRY004

    stops = model.prompter.tokenizer.eos_ids
    engine = Engine(model.runner, model.config, stops, model.block_cache(), note)
    running: list[Running] = []
    for request in requests:
        limited = replace(request, draft_tokens=limit)
        running.append(model.prompter.sequence(limited, model.prompter.prompt(limited), Stamps(0.0)))
        engine.submit(running[-1])
    while engine.load:
        engine.step()
    return [tuple(sequence.output) for sequence in running]


def differing(model: LoadedModel, case: Case, count: int, tokens: int) -> Mapping[int, int]:
    """By draft limit, how many of the replies are not those without drafts."""
    requests = [asked(one, case, index, tokens) for index, one in enumerate(questions(model, count))]
    expected = replies(model, requests, 0)
    return {
        limit: sum(a != b for a, b in zip(expected, replies(model, requests, limit), strict=True))
        for limit in LIMITS
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=32, help="at most so many for each reply")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a reply differs")
    options = parser.parse_args(arguments)
    most = LIMITS[-1]
    spec = LoadModel(
        "m", str(options.model), threads=options.threads, exact=True, max_context=2048, max_draft_tokens=most
    )
    model = load(spec, lambda _stage: None)
    speculation.best_length = lambda _rate, most, *_, **__: Promise(most, 2.0)
    found = {case.name: differing(model, case, options.prompts, options.tokens) for case in CASES}
    heads = ("replies that differ", *(f"limit {limit}" for limit in LIMITS))
    table = [
        heads,
        *((name, *(f"{n} of {options.prompts}" for n in by.values())) for name, by in found.items()),
    ]
    total = sum(sum(by.values()) for by in found.values())
    targets = [Target("replies that differ", total, 0, at_least=False)]
    return finish({"found": found}, [table], targets, as_json=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
