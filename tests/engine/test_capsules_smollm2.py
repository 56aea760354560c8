"""Restoring on the real model: what comes back from the disk gives the tokens of a cold engine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from agentserve.engine.engine import Engine
from agentserve.engine.loading import LoadedModel, load
from agentserve.engine.protocol import (
    Finished,
    GenerateRequest,
    LoadModel,
    RequestEvent,
    SamplingParams,
    Started,
    TextDelta,
)
from agentserve.engine.sequence import Stamps

pytestmark = pytest.mark.model
TEXT = "A prefix that this machine has processed is not computed again, whoever asks for it. " * 12


class Server:
    """The model with an index, pins and a folder of its own; another one over the same folder is a restart."""

    def __init__(self, model: LoadedModel) -> None:
        self.events: list[RequestEvent] = []
        cache = model.block_cache()
        self._model = model
        self.store = model.capsule_store(cache, lambda: None)
        self._engine = Engine(model.runner, model.config, frozenset(), cache, self.events.append, self.store)

    def ask(self, text: str) -> tuple[Started, str]:
        self.events.clear()
        request = GenerateRequest(
            "r", prompt=text, sampling=SamplingParams(temperature=0.0), max_new_tokens=12
        )
        prompter = self._model.prompter
        self._engine.submit(prompter.sequence(request, prompter.prompt(request), Stamps(time.monotonic())))
        while not any(isinstance(event, Finished) for event in self.events):
            self._engine.step()
        (started,) = [event for event in self.events if isinstance(event, Started)]
        return started, "".join(event.text for event in self.events if isinstance(event, TextDelta))


@pytest.fixture(scope="module")
def model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("capsules")
    spec = LoadModel(
        "smollm2", str(smollm2), threads=2, max_context=2048, exact=True, capsule_dir=str(folder)
    )
    return load(spec, lambda stage: None)


def test_a_restored_prefix_continues_as_a_cold_one_token_for_token(model: LoadedModel) -> None:
    first = Server(model)
    _, cold = first.ask(TEXT)
    _, cold_longer = first.ask(TEXT + "And so")
    first.store.close()
    for block in range(64):
        # A new process finds its pool empty.
        model.runner.write_block(block, bytes(model.runner.geometry.block_bytes))
    second = Server(model)
    started, text = second.ask(TEXT + "And so")
    assert started.prefix_action == "restore"
    assert started.cached_tokens > 150
    assert text == cold_longer
    _, again = second.ask(TEXT)
    assert again == cold
    second.store.close()
