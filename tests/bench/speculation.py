"""Tokens per second with speculation and without, and what a look-up takes.

    python tests/bench/speculation.py MODEL.gguf [--rounds 3] [--threads 2] [--exact] [--json] [--check]

Each case is generated with drafts and without, in turns, on one loaded model; of each the fastest of the rounds counts,
since what else runs on the machine only makes it slower. Prefill is not counted: it is the same. `gain` is by the
clock and decides; `by CPU time` is the same by the time of all threads, which a busy machine disturbs less.

The small model that this is measured with follows no instruction to repeat a file, and does not copy far. So where a
case says *dictated* the text is given: every step runs with all its rows, and then the logits of the prescribed token
are made the largest. That is the speed of a model which writes that text. Free prose is the model's own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent))
from agentserve.engine.bench import package_text
from agentserve.engine.drafting.suffix_index import SuffixIndex
from agentserve.engine.engine import Engine
from agentserve.engine.loading import LoadedModel, load
from agentserve.engine.protocol import (
    DraftStats,
    Finished,
    GenerateRequest,
    LoadModel,
    Message,
    RequestEvent,
    SamplingParams,
)
from agentserve.engine.runners.runner import Logits, Runner, StepPlan
from agentserve.engine.sequence import Stamps
from agentserve.engine.text.tokenise import Tokenizer
from figures import Target, finish

_LIMIT = 15
_GREEDY = SamplingParams(temperature=0.0)
_FREE = SamplingParams(temperature=1.0, seed=1)


@dataclass(frozen=True, slots=True)
class Case:
    """A text to generate; `dictated` is what is written, empty for what the model wants to write."""

    name: str
    request: GenerateRequest
    dictated: tuple[int, ...]
    least_gain: float


class Dictating:
    """Passes everything on to a runner, and makes it choose the tokens of `script` from position `start` on."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.script: tuple[int, ...] = ()
        self.start = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def forward(self, plan: StepPlan) -> Logits:
        logits = self._runner.forward(plan)
        (part,) = plan.slices
        for row, index in enumerate(part.rows):
            place = part.past + index + 1 - self.start
            if 0 <= place < len(self.script):
                logits[row, self.script[place]] = 1e4
        return logits


class Run(NamedTuple):
    """One generation."""

    tokens: tuple[int, ...]
    decode_s: float
    cpu_s: float
    drafts: DraftStats


class Turns:
    """One loaded model, on which cases run with drafts and without."""

    def __init__(self, model: LoadedModel, folder: Path) -> None:
        self._prompter = model.prompter
        self._runner = Dictating(model.runner)
        self._cache = model.block_cache()
        self._config = replace(model.config, step_costs_file=folder / "costs.json")
        self._end: Finished | None = None

    def pair(self, case: Case) -> tuple[Run, Run]:
        """Without drafts and with them. The prompt is computed once; drafts know of no earlier run.

        First the engine has time to measure what steps cost, as a worker has while it waits.
        """
        engine = Engine(self._runner, self._config, frozenset(), self._cache, self._note)
        while engine.step():
            pass
        return self._run(engine, case, 0), self._run(engine, case, _LIMIT)

    def _run(self, engine: Engine, case: Case, limit: int) -> Run:
        request = replace(case.request, request_id=f"{limit}", draft_tokens=limit)
        prompt = self._prompter.prompt(request)
        sequence = self._prompter.sequence(request, prompt, Stamps(time.monotonic()))
        self._runner.script, self._runner.start = case.dictated, len(prompt.tokens)
        engine.submit(sequence)
        while not sequence.output:
            engine.step()
        self._end, begun = None, time.process_time()
        while self._end is None:
            engine.step()
        cpu_s = time.process_time() - begun
        return Run(tuple(sequence.output), self._end.timings.decode_s, cpu_s, self._end.drafts)

    def _note(self, event: RequestEvent) -> None:
        if isinstance(event, Finished):
            self._end = event


def copy_case(corpus: Sequence[int]) -> Case:
    """200 tokens from the middle of a context of 5,000 tokens."""
    text = tuple(corpus[:5000])
    return Case("copy 200 of 5,000 tokens, dictated", _raw(text, 200), text[2000:2200], 3.0)


def edit_case(tokenizer: Tokenizer) -> Case:
    """A file of 150 lines, and then the same file with the body of one function written anew."""
    lines = package_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"""Which request has the engine next'))
    file = lines[start : start + 150]
    first, last = [i for i, line in enumerate(file) if line.startswith("    def ") and i > 50][:2]
    body = ["        names = [name for name, lane in self._lane_of.items() if lane is not None]"]
    body += ["        return tuple(sorted(names, key=len, reverse=True))", ""]
    changed = [*file[: first + 1], *body, *file[last:]]
    prompt = tokenizer.encode("Change one function of this file:\n" + "\n".join(file) + "\n\nAnswer:\n")
    written = tuple(tokenizer.encode("\n".join(changed)))
    return Case("edit a file of 150 lines, dictated", _raw(tuple(prompt), len(written)), written, 2.0)


def prose_case(name: str, sampling: SamplingParams, text: str) -> Case:
    """200 tokens of the model's own."""
    request = GenerateRequest("", (Message("user", text),), sampling=sampling, max_new_tokens=200)
    return Case(name, request, (), 0.97)


def _raw(prompt: tuple[int, ...], new: int) -> GenerateRequest:
    return GenerateRequest("", prompt=prompt, sampling=_GREEDY, max_new_tokens=new)


def cases(model: LoadedModel) -> list[Case]:
    tokenizer = model.prompter.tokenizer
    corpus = tokenizer.encode(package_text())
    story = "Write a story about a lighthouse keeper and a storm."
    long = tokenizer.decode(corpus[:2500])
    return [
        copy_case(corpus),
        edit_case(tokenizer),
        prose_case("free prose, greedy", _GREEDY, story),
        prose_case("free prose, sampled", _FREE, story),
        prose_case("free prose behind 2,500 tokens, sampled", _FREE, f"{long}\n\n{story}"),
    ]


def look_up_us(tokens: Sequence[int], history: int) -> float:
    """Median microseconds to look for a draft and to add a token, behind `history` tokens."""
    text = [*tokens] * (history // len(tokens) + 1)
    index, seconds = SuffixIndex(text[:history]), list[float]()
    for token in tokens[5000:7000]:
        begun = time.perf_counter()
        index.continuation(index, _LIMIT)
        index.extend((token,))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e6


def compare(turns: Turns, case: Case, rounds: int) -> tuple[Sequence[str], Target]:
    """A row of the table, and the case's target."""
    pairs = [turns.pair(case) for _ in range(rounds)]
    offs, ons = zip(*pairs, strict=True)
    off, on = (min(run.decode_s for run in runs) for runs in (offs, ons))
    off_cpu, on_cpu = (min(run.cpu_s for run in runs) for runs in (offs, ons))
    tokens, drafts = len(ons[0].tokens) - 1, ons[-1].drafts
    cells = (
        case.name,
        f"{tokens / off:.1f}",
        f"{tokens / on:.1f}",
        f"{off / on:.2f}",
        f"{off_cpu / on_cpu:.2f}",
        "yes" if len({run.tokens for run in (*offs, *ons)}) == 1 else "no",
        f"{drafts.attempts} of {drafts.steps}",
        f"{drafts.draft_length:.1f}",
        f"{drafts.acceptance_rate:.0%}",
        f"{drafts.tokens_per_step:.2f}",
    )
    return cells, Target(case.name, off / on, case.least_gain, at_least=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a target is missed")
    options = parser.parse_args(arguments)
    spec = LoadModel(
        "bench",
        str(options.model),
        threads=options.threads,
        exact=options.exact,
        draft_tokens=_LIMIT,
        max_draft_tokens=_LIMIT,
    )
    model = load(spec, lambda _stage: None)
    corpus = model.prompter.tokenizer.encode(package_text())
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(model, Path(folder))
        compared = [
            compare(turns, case, options.rounds) for case in cases(model) if options.only in case.name
        ]
    look_ups = [
        Target(f"look-up, µs at {history:,} tokens", look_up_us(corpus, history), 20, at_least=False)
        for history in (5_000, 50_000, 100_000)
    ]
    heads = ("case", "off", "on", "gain", "by CPU time", "same text", "drafts in steps", "length", "accepted")
    heads += ("tokens/step",)
    targets = [target for _, target in compared] + look_ups
    facts = {"exact": options.exact, "rounds": options.rounds}
    table = [heads, *(cells for cells, _ in compared)]
    return finish(facts, [table], targets, as_json=options.json, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
