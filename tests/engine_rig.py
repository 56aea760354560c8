"""An engine on the reference model, run by hand: step by step, no threads, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agentserve.engine.config import EngineConfig
from agentserve.engine.drafting.draft_model import DraftModel
from agentserve.engine.engine import Engine
from agentserve.engine.prefix.block_cache import BlockCache
from agentserve.engine.prefix.pins import plan_pin
from agentserve.engine.prompts.prompting import Prompter
from agentserve.engine.protocol import (
    Finished,
    GenerateRequest,
    LoadModel,
    Message,
    RequestEvent,
    SamplingParams,
    Started,
    TextDelta,
)
from agentserve.engine.runners.backend import Backend
from agentserve.engine.runners.reference_model import open_reference
from agentserve.engine.runners.runner import Logits, Runner, StepPlan
from agentserve.engine.sequence import Sequence, Stamps

GREEDY = SamplingParams(temperature=0.0)
SYSTEM = "You are a careful agent. " * 12  # nine blocks of one-byte tokens and some


def chat(*texts: str, system: str = SYSTEM) -> tuple[Message, ...]:
    """A system text, then user and assistant in turn."""
    roles = ("user", "assistant")
    turns = [Message(roles[i % 2], text) for i, text in enumerate(texts)]  # type: ignore[arg-type]
    return (Message("system", system), *turns)


class RecordingRunner:
    """Passes everything on to a runner and keeps the plans."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.plans: list[StepPlan] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def forward(self, plan: StepPlan) -> Logits:
        self.plans.append(plan)
        return self._runner.forward(plan)


@dataclass
class Rig:
    """An engine with its runner, prompter and all events it emitted; `endless` ignores end-of-turn tokens."""

    config: EngineConfig = field(default_factory=lambda: EngineConfig(context_length=1024))
    blocks: int = 64
    endless: bool = False
    events: list[RequestEvent] = field(default_factory=list)
    backend: Backend | None = None
    draft_model: DraftModel | None = None

    def __post_init__(self) -> None:
        backend = self.backend or open_reference(LoadModel("reference", None))
        state_rows = 16 if backend.runner.geometry.state_bytes else 0
        backend.runner.allocate(self.blocks, state_rows)
        self.runner = RecordingRunner(backend.runner)
        self.tokenizer = backend.tokenizer
        self.prompter = Prompter(
            backend.tokenizer,
            backend.template,
            backend.defaults,
            self.config.context_length,
            draft_limits=self.config.draft_limits,
        )
        stops = frozenset[int]() if self.endless else backend.tokenizer.eos_ids
        cache = BlockCache("reference", self.blocks, state_rows, backend.runner.geometry.block_tokens)
        self.engine = Engine(
            self.runner, self.config, stops, cache, self.events.append, draft_model=self.draft_model
        )

    def submit(self, request_id: str = "r", text: str = "hello", **fields: object) -> Sequence:
        """Queues a chat request; greedy unless `sampling` says otherwise."""
        base = GenerateRequest(request_id, (Message("user", text),), sampling=GREEDY, max_new_tokens=24)
        request = replace(base, **fields)  # type: ignore[arg-type]
        prompt = self.prompter.prompt(request)
        sequence = self.prompter.sequence(request, prompt, Stamps(0.0))
        if request.pin is not None:
            plan_pin(sequence, request.pin, self.runner.geometry.block_tokens)
        self.engine.submit(sequence)
        return sequence

    def run(self) -> None:
        """Steps until nothing is left, and checks the books."""
        while self.engine.step():
            pass
        self.engine.integrity.whole()

    def ask(self, request_id: str, messages: tuple[Message, ...], **fields: object) -> Started:
        """Runs one request to its end and returns how it was started."""
        self.submit(request_id, messages=messages, **fields)
        self.settle()
        (started,) = [e for e in self.events if isinstance(e, Started) and e.request_id == request_id]
        return started

    def settle(self) -> None:
        """Runs until nothing is left to do."""
        self.run()

    def text(self, request_id: str = "r") -> str:
        return "".join(e.text for e in self.events if isinstance(e, TextDelta) and e.request_id == request_id)

    def finished(self, request_id: str = "r") -> Finished:
        """The one end of a request."""
        (end,) = [e for e in self.events if isinstance(e, Finished) and e.request_id == request_id]
        return end
