"""An engine run by hand on the calling thread, with a stopwatch around its model: what does all the rest cost?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from agentserve.engine.capsules.store import CapsuleStore
from agentserve.engine.config import EngineConfig
from agentserve.engine.engine import Engine
from agentserve.engine.loading import LoadedModel
from agentserve.engine.prefix.block_cache import BlockCache
from agentserve.engine.prompts.prompting import Prompter
from agentserve.engine.protocol import Finished, GenerateRequest, RequestEvent, SamplingParams, Started
from agentserve.engine.runners.runner import KvGeometry, Logits, Runner, StepPlan
from agentserve.engine.sequence import Stamps


class TimedRunner:
    """Passes everything on to a runner and adds up the time of its steps, in seconds."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def forward(self, plan: StepPlan) -> Logits:
        begun = time.perf_counter()
        logits = self._runner.forward(plan)
        self.seconds += time.perf_counter() - begun
        return logits


class IdleRunner:
    """Computes nothing, for measuring what is done around a model of that geometry."""

    def __init__(self, geometry: KvGeometry, vocab_size: int) -> None:
        self.geometry = geometry
        self.vocab_size = vocab_size

    def allocate(self, blocks: int, state_rows: int) -> None: ...

    def forward(self, plan: StepPlan) -> Logits:
        return np.zeros((plan.total_rows, self.vocab_size), np.float32)

    def copy_block(self, source: int, target: int) -> None: ...


@dataclass(frozen=True)
class Asked:
    """What became of a request. `steps_s` is the model's part of `first_s`, the time to the first token, which
    begins before the prompt is rendered. `planned_s` is the time from the queue to the first step. `blocks` were in
    use when it had its session."""

    cached_tokens: int
    prompt_tokens: int
    first_s: float
    planned_s: float
    decode_s: float
    steps_s: float
    blocks: int


class WarmEngine:
    """One engine; what it has computed stays in its memory from one question to the next."""

    def __init__(
        self,
        runner: Runner,
        prompter: Prompter,
        config: EngineConfig,
        cache: BlockCache,
        capsules: CapsuleStore | None = None,
    ) -> None:
        self.cache = cache
        self._prompter = prompter
        self._timed = TimedRunner(runner)
        self._end: Finished | None = None
        self._started: Started | None = None
        self._blocks = 0
        self.engine = Engine(self._timed, config, frozenset(), cache, self._note, capsules)

    @classmethod
    def on(cls, model: LoadedModel) -> WarmEngine:
        """An engine on a loaded model, with the disk tier that the model was loaded with."""
        cache = model.block_cache()
        capsules = model.capsule_store(cache, lambda: None)
        return cls(model.runner, model.prompter, model.config, cache, capsules)

    def ask(self, request: GenerateRequest) -> Asked:
        """Runs a greedy request to its end. The steps counted are those up to the first token if it is the only one."""
        self._end, self._timed.seconds = None, 0.0
        stamps = Stamps(time.monotonic())
        greedy = replace(request, request_id="bench", sampling=SamplingParams(temperature=0.0))
        sequence = self._prompter.sequence(greedy, self._prompter.prompt(greedy), stamps)
        submitted = time.monotonic()
        self.engine.submit(sequence)
        while self._end is None:
            self.engine.step()
        assert self._started is not None
        timings = self._end.timings
        return Asked(
            cached_tokens=self._end.cached_tokens,
            prompt_tokens=self._end.prompt_tokens,
            first_s=timings.first_token_s,
            planned_s=timings.queued_s - (submitted - stamps.arrived),
            decode_s=timings.decode_s,
            steps_s=self._timed.seconds,
            blocks=self._blocks,
        )

    def tokens(self, tokens: Sequence[int], new: int = 1, namespace: str = "") -> Asked:
        """Asks with exactly these tokens."""
        request = GenerateRequest("", prompt=tuple(tokens), max_new_tokens=new, namespace=namespace)
        return self.ask(request)

    def save_all(self) -> None:
        """Copies everything that waits towards the disk, and waits for the disk."""
        while self.engine.step():
            pass
        disk = self.engine.capsules.disk
        if disk is not None:
            disk.background.settle()

    def _note(self, event: RequestEvent) -> None:
        if isinstance(event, Started):
            self._started, self._blocks = event, self.cache.blocks.used
        elif isinstance(event, Finished):
            self._end = event
