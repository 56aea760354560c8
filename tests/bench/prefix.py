"""What prefix memory costs and saves: hot turns, forks, restores, planning, branches, writing to disk.

    python tests/bench/prefix.py MODEL.gguf [--threads 2] [--repeats 5]

hot turn    a chat with 4,000 known tokens and 100 new ones: the time to the first token, from before the template is
            rendered, over the time of the model's steps in it
fork        a prompt that leaves one of 8,000 tokens near its end, in the middle of a block: the time from the queue
            to the first step, and the blocks in use that it does not share
restore     8,000 tokens in a worker process that has just been started, from its disk tier: the time to the first
            token, tokenising included; the files were written a moment ago and lie in the system's page cache
planning    8,000-token prompts against 200 conversations of as many tokens, 3,000 of them common to all: the time
            from the queue to the first step, for one that goes on behind a conversation and one that parts from it;
            on a runner of the same geometry that computes nothing
branches    eight continuations of a 6,000-token prefix: blocks of all but their own ones over those of one prefix
writing     decoding while blocks of an earlier turn are copied to the disk, over decoding with nothing to copy

All but `restore` run in this process, without HTTP. Medians of the repeats count; for `writing`, which differs by
less than two runs of the same thing do, the shortest runs of either kind.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

from agentserve.engine.bench import package_text
from agentserve.engine.loading import LoadedModel, load
from agentserve.engine.prefix.block_cache import BlockCache
from agentserve.engine.protocol import Finished as End
from agentserve.engine.protocol import Generate, GenerateRequest, LoadModel, Message, Ready, Shutdown
from figures import Target, finish
from quiet import undisturbed
from warm_engine import IdleRunner, WarmEngine

sys.path.append(str(Path(__file__).parents[1]))
from worker_rig import worker_process

HOT_CACHED, HOT_NEW = 4000, 100
LONG, FORKED, BRANCHED = 8000, 7980, 6000
SESSIONS, COMMON, BRANCHES, OWN = 200, 3000, 8, 200
WRITTEN, DECODED = 2000, 64
DISK_BYTES = 4 << 30


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity and the limit that it should stay below."""

    name: str
    unit: str
    samples: tuple[float, ...]
    limit: float

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    def row(self) -> tuple[str, ...]:
        shown = (f"{value:.4g}" for value in (self.value, min(self.samples), max(self.samples)))
        return self.name, self.unit, *shown


def sampled(measure: Callable[[], float], patience_s: float) -> float:
    """A sample from a quiet machine, if it becomes quiet in time; a disturbed one is taken again a few times, unless
    there is no patience at all."""
    return undisturbed(measure, [os.getpid()], patience_s)[0] if patience_s else measure()


class Bench:
    """A model, its text, and how often to measure. The model keeps capsules below a folder that is empty at first."""

    def __init__(self, model: LoadedModel, repeats: int, patience_s: float) -> None:
        self._model = model
        self._repeats = repeats
        self._patience_s = patience_s
        self._text = model.prompter.tokenizer.encode(package_text())
        self._warm = WarmEngine.on(model)

    def figures(self) -> Iterator[Figure]:
        """All that is measured in this process, in order."""
        yield self._hot_turn()
        yield from self._fork()
        yield from self._planning()
        yield self._branches()
        yield self._writing()

    def _tokens(self, length: int, start: int) -> tuple[int, ...]:
        return tuple(self._text[start : start + length])

    def _words(self, length: int, start: int) -> str:
        return self._model.prompter.tokenizer.decode(self._tokens(length, start))

    def _repeated(self, measure: Callable[[], float]) -> tuple[float, ...]:
        return tuple(sampled(measure, self._patience_s) for _ in range(self._repeats))

    def _hot_turn(self) -> Figure:
        system = Message("system", self._words(HOT_CACHED, 0))
        chat = [system, Message("user", "Go on.")]
        self._warm.ask(GenerateRequest("", tuple(chat), max_new_tokens=1))
        starts = count(10_000, HOT_NEW)

        def overhead() -> float:
            new = Message("user", self._words(HOT_NEW, next(starts)))
            hot = self._warm.ask(GenerateRequest("", (system, new), max_new_tokens=1))
            assert hot.cached_tokens > HOT_CACHED * 0.95, hot
            return 100 * (hot.first_s / hot.steps_s - 1)

        return Figure("hot turn, over its prefill", "%", self._repeated(overhead), 5.0)

    def _fork(self) -> Iterator[Figure]:
        whole = self._tokens(LONG, 0)
        self._warm.tokens(whole, namespace="fork")
        geometry = self._model.runner.geometry
        starts = count(20_000, 8)
        blocks: list[float] = []

        def forked() -> float:
            fork = self._warm.tokens((*whole[:FORKED], *self._tokens(8, next(starts))), namespace="fork")
            assert fork.cached_tokens >= FORKED, fork
            blocks.append(fork.blocks - FORKED // geometry.block_tokens)
            return 1000 * fork.planned_s

        yield Figure(f"fork of {FORKED:,} tokens", "ms", self._repeated(forked), 5.0)
        yield Figure("its blocks that are not shared", "blocks", tuple(blocks), 1.0)

    def _idle(self, blocks: int) -> WarmEngine:
        """An engine on as many blocks as are wanted, of this model's geometry."""
        runner = IdleRunner(self._model.runner.geometry, self._model.runner.vocab_size)
        cache = BlockCache("idle", blocks, 0, runner.geometry.block_tokens)
        return WarmEngine(runner, self._model.prompter, self._model.config, cache)  # type: ignore[arg-type]

    def _planning(self) -> Iterator[Figure]:
        size = self._model.runner.geometry.block_tokens
        idle = self._idle((SESSIONS + 20) * (LONG // size + 2))
        idle.engine.conversations.limit = 2 * SESSIONS
        common = self._tokens(COMMON, 0)

        def session(number: int) -> tuple[int, ...]:
            return (*common, *self._tokens(LONG - COMMON - 100, 10_000 + number * 700))

        for number in range(SESSIONS):
            idle.tokens(session(number))
        numbers = count()

        def goes_on() -> float:
            number = next(numbers)
            known = session(number * 31 % SESSIONS)
            asked = idle.tokens((*known, *self._tokens(99, 5_000 + number)))
            assert asked.cached_tokens == len(known), asked
            return 1000 * asked.planned_s

        def parts() -> float:
            number = next(numbers)
            known = session(number * 31 % SESSIONS)[: LONG // 2]
            asked = idle.tokens((*known, *self._tokens(LONG // 2 - 1, 3_000 + number)))
            assert asked.cached_tokens >= len(known), asked
            return 1000 * asked.planned_s

        against = f"against {SESSIONS} conversations"
        yield Figure(f"planning {LONG:,} tokens {against}", "ms", self._repeated(goes_on), 10.0)
        yield Figure("the same, parting in the middle", "ms", self._repeated(parts), 10.0)

    def _branches(self) -> Figure:
        size = self._model.runner.geometry.block_tokens
        idle = self._idle(1000)
        prefix = self._tokens(BRANCHED, 0)
        own = 0
        for number in range(BRANCHES):
            asked = idle.tokens((*prefix, *self._tokens(OWN, 10_000 + number * OWN)))
            own += -(-asked.prompt_tokens // size) - BRANCHED // size
        blocks = idle.cache.blocks
        of_prefix = blocks.size - blocks.free - own
        ratio = of_prefix / -(-BRANCHED // size)
        return Figure(f"{BRANCHES} branches, blocks of the prefix over those of one", "", (ratio,), 1.1)

    def _writing(self) -> Figure:
        with_copies, without = list[float](), list[float]()
        # One round more than is counted: a first one warms up.
        for number in range(self._repeats + 1):
            for times, wants_copies in ((with_copies, True), (without, False)):
                times.append(self._decoded(2 * number + wants_copies, wants_copies))
        ratio = min(with_copies[1:]) / min(without[1:])
        return Figure("decoding while writing, slower by", "%", (100 * (ratio - 1),), 1.0)

    def _decoded(self, number: int, wants_copies: bool) -> float:
        """Seconds for some tokens, with the blocks of a turn that has just ended to be copied, or without."""

        def measure() -> float:
            self._warm.save_all()
            self._warm.tokens(self._tokens(WRITTEN, 0), namespace=f"writing {number} {os.urandom(4).hex()}")
            if not wants_copies:
                self._warm.save_all()
            return self._warm.tokens(self._tokens(512, 0), DECODED, namespace="decoding").decode_s

        return sampled(measure, self._patience_s)


def restored(spec: LoadModel, text: str, repeats: int, patience_s: float) -> Figure:
    """Time to the first token in worker processes that find a prompt on their disk."""

    def served() -> End:
        with worker_process() as worker:
            ready = worker.load(spec)
            assert isinstance(ready, Ready), ready
            worker.send(Generate(GenerateRequest("restore", prompt=text, max_new_tokens=1)))
            end = worker.receive_until(End)[-1]
            worker.send(Shutdown())
            worker.process.wait(60)
            assert isinstance(end, End)
            return end

    served()

    def measure() -> float:
        end = served()
        assert end.cached_tokens == end.prompt_tokens - 1, end
        return end.timings.first_token_s

    samples = tuple(sampled(measure, patience_s) for _ in range(repeats))
    return Figure(f"restore of {LONG:,} tokens, to the first token", "s", samples, 0.4)


def measured(file: Path, threads: int, repeats: int, patience_s: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as folder:
        spec = LoadModel(
            "bench",
            str(file),
            threads=threads,
            compile_cache_dir=f"{folder}/graphs",
            capsule_dir=f"{folder}/here",
            capsule_disk_bytes=DISK_BYTES,
        )
        model = load(spec, lambda _stage: None)
        yield from Bench(model, repeats, patience_s).figures()
        tokenizer = model.prompter.tokenizer
        text = tokenizer.decode(tokenizer.encode(package_text())[:LONG])
        elsewhere = replace(spec, capsule_dir=f"{folder}/restored")
        yield restored(elsewhere, text, repeats, patience_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", type=Path, help="a GGUF file with a context of 8,192 tokens or more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--patience", type=float, default=5.0, help="seconds to wait for a quiet machine; 0 is no matter"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    figures = list(measured(options.model, options.threads, options.repeats, options.patience))
    rows = [("figure", "unit", "median", "least", "most"), *(figure.row() for figure in figures)]
    targets = [Target(one.name, one.value, one.limit, at_least=False) for one in figures]
    facts = {"threads": options.threads, "figures": [asdict(one) for one in figures]}
    code = finish(facts, [rows], targets, as_json=options.json, check=options.check)
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    # Native thread pools may wait for ever in their destructors.
    os._exit(main())
