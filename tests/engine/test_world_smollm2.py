"""The world of `capsule_world` on SmolLM2 in exact mode: warm, restored and cold engines agree on every token."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from agentserve.engine.capsules.disk import CapsuleDisk
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.protocol import LoadModel
from agentserve.engine.runners.backend import Backend
from agentserve.engine.runners.loading import open_openvino
from agentserve.engine.runners.openvino import OpenVinoRunner
from agentserve.engine.runners.runner import Runner
from capsule_world import CapsuleWorld, Models
from hypothesis import HealthCheck, Phase, settings
from prefix_world import Oracle
from world_moves import capsule_moves, conversation_moves

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEXTS = ["go", "list the files", "list the folders", "read main.py and tell me what it does"]
BLOCKS, STEPS = 14, 12


class ReusedRunner:
    """A runner that several engines use one after the other: each finds its pool empty, as in a new process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._blocks = 64
        runner.allocate(self._blocks, 0)

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def allocate(self, blocks: int, state_rows: int) -> None:
        assert blocks <= self._blocks
        for block in range(blocks):
            self._runner.write_block(block, bytes(self._runner.geometry.block_bytes))


@pytest.fixture(scope="module")
def models(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    cache = str(tmp_path_factory.mktemp("graphs"))
    spec = LoadModel("smollm2", str(smollm2), threads=2, exact=True, compile_cache_dir=cache)

    def opened() -> Backend:
        backend = open_openvino(open_gguf(smollm2), spec, lambda stage: None)
        return replace(backend, runner=ReusedRunner(backend.runner))  # type: ignore[arg-type]

    return Models(opened(), Oracle(opened()))


class SmolMachine(conversation_moves(TEXTS, most_steps=6), capsule_moves(TEXTS, most_steps=6)):
    """Everything that agents, people and disks do, in any order; the world checks each answer and the books."""

    models: Models

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = CapsuleWorld(Path(self.folder.name), BLOCKS, self.models)


def test_random_agents_are_answered_as_by_a_cold_engine(models: Models) -> None:
    SmolMachine.models = models
    # Examples are few and dear, so a failing one is not made smaller.
    limits = settings(
        max_examples=6,
        stateful_step_count=STEPS,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    case = type("Case", (SmolMachine.TestCase,), {"settings": limits})
    case("runTest").runTest()


def walk(folder: Path, models: Models, steps: int = 24) -> None:
    """A fixed random walk through the moves that broken engines do not survive."""
    dice, world = random.Random(7), CapsuleWorld(folder, BLOCKS, models)
    moves: list[Callable[[int, str], None]] = [
        lambda index, text: world.start(index % 2, text),
        world.next_turn,
        lambda index, text: world.retry(index),
        world.edit,
        lambda index, text: world.abort(index, text, index),
        lambda index, text: world.restart(),
    ]
    with closing(world):
        world.start(0, "go")
        for _ in range(steps):
            dice.choice(moves)(dice.randrange(8), dice.choice(TEXTS))


def test_the_walk_that_finds_broken_engines_passes_on_the_real_one(models: Models, tmp_path: Path) -> None:
    walk(tmp_path, models)


def tail_not_copied(patch: pytest.MonkeyPatch) -> None:
    """A partly shared block is not copied before it is written to."""
    patch.setattr(OpenVinoRunner, "copy_block", lambda self, source, target: None)


def blocks_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """The first block of a file is read in place of every other."""
    read = CapsuleDisk.read
    patch.setattr(CapsuleDisk, "read", lambda self, block: read(self, block._replace(number=0)))


@pytest.mark.parametrize("breakage", [tail_not_copied, blocks_mixed_up])
def test_a_broken_engine_is_found_out(
    breakage: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    models: Models,
) -> None:
    breakage(monkeypatch)
    with pytest.raises(AssertionError, match="for"):
        walk(tmp_path, models)
