"""What exact mode costs: steps of one row, of two, and short drafts as sequences of one row each.

    python tests/bench/exact.py MODEL.gguf [--context 512 4096 7680] [--rounds 15] [--threads 2] [--json]

Steps run on the loaded model without the engine loop. The context is one prefilled stretch whose blocks are copied as
often as needed: reading it takes what reading any text takes. Kinds of steps take turns within a round, and the
least time of all rounds counts, so that what else runs on the machine disturbs as little as may be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from agentserve.engine.loading import load
from agentserve.engine.protocol import LoadModel
from agentserve.engine.runners.runner import Runner, SequenceSlice, StepPlan
from figures import finish

_BASE_TOKENS, _TOKEN = 256, 11


@dataclass(frozen=True, slots=True)
class Kind:
    """A step that gives `tokens` tokens at best, by rows of one sequence or by sequences of one row."""

    name: str
    tokens: int
    separate: bool = False
    dummy: bool = False

    def plan(self, context: int, blocks: int, block_tokens: int) -> StepPlan:
        """The step behind `context` tokens, whose last one lies in the last of `blocks` blocks."""
        table = tuple(range(blocks))
        if self.separate:
            lasts = range(context, context + self.tokens)
            parts = (
                SequenceSlice((_TOKEN,), past, table[: past // block_tokens + 1], (0,)) for past in lasts
            )
            return StepPlan(tuple(parts))
        fed = (_TOKEN,) * (self.tokens + self.dummy)
        used = table[: (context + len(fed) - 1) // block_tokens + 1]
        return StepPlan((SequenceSlice(fed, context, used, tuple(range(self.tokens))),))


KINDS = (
    Kind("1 row", 1),
    Kind("1 row and a dummy", 1, dummy=True),
    *(Kind(f"{n} rows", n) for n in (2, 4, 8, 16)),
    *(Kind(f"{n} sequences of 1 row", n, separate=True) for n in (2, 4, 8)),
)


def fill(runner: Runner, blocks: int) -> None:
    """Gives the first blocks of the pool content, by prefilling some and copying these."""
    base = _BASE_TOKENS // runner.geometry.block_tokens
    tokens = tuple(100 + i for i in range(_BASE_TOKENS))
    runner.forward(StepPlan((SequenceSlice(tokens, 0, tuple(range(base)), ()),)))
    for block in range(base, blocks):
        runner.copy_block(block % base, block)


def measure(runner: Runner, context: int, rounds: int) -> dict[str, float]:
    """The least seconds of each kind of step at a context."""
    size = runner.geometry.block_tokens
    plans = {kind.name: kind.plan(context, context // size + 1, size) for kind in KINDS}
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(rounds):
        for name, plan in plans.items():
            # Once for the shape: the plugin allocates and prepares when it changes.
            runner.forward(plan)
            begun = time.perf_counter()
            runner.forward(plan)
            seconds[name].append(time.perf_counter() - begun)
    return {name: min(values) for name, values in seconds.items()}


def table(measured: dict[int, dict[str, float]]) -> Iterator[Sequence[str]]:
    yield "step", *(f"{context:,} tokens" for context in measured)
    for kind in KINDS:
        yield kind.name, *(f"{times[kind.name] * 1000:.1f} ms" for times in measured.values())


def shares(measured: dict[int, dict[str, float]]) -> Iterator[Sequence[str]]:
    """Decode speed of exact mode for each one of a single row: without a guess, and if so many guesses are right."""
    yield "exact mode's speed", *(f"{context:,} tokens" for context in measured)
    for right in (0.0, 0.2, 0.35, 0.5):
        name = f"{right:.0%} of guesses right" if right else "with a dummy row"
        kind = "2 rows" if right else "1 row and a dummy"
        yield name, *(f"{t['1 row'] * (1 + right) / t[kind]:.2f}" for t in measured.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, nargs="+", default=[512, 4096, 7680])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", help="folder for the built graph")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    spec = LoadModel(
        options.model.name,
        str(options.model),
        threads=options.threads,
        max_context=max(options.context) + 64,
        compile_cache_dir=options.cache,
    )
    runner = load(spec, lambda _stage: None).runner
    fill(runner, max(options.context) // runner.geometry.block_tokens + 1)
    measured = {context: measure(runner, context, options.rounds) for context in options.context}
    facts = {"model": options.model.name, "seconds": measured}
    return finish(facts, [table(measured), shares(measured)], [], as_json=options.json, check=False)


if __name__ == "__main__":
    sys.exit(main())
