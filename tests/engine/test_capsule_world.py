"""Random agents, pins, restarts and damaged files: answers stay those of a fresh engine, and broken ones are found."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from agentserve.engine.capsules.disk import CapsuleDisk, StoredFile
from agentserve.engine.runners.reference import ReferenceRunner
from capsule_world import CapsuleWorld
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from world_moves import CHOICES, NAMES, capsule_moves

# An engine that is killed leaves its half-written file open: here its process lives on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TEXTS = ["go", "list the files", "list the folders", "read main.py and tell me what it does " * 3]


class CapsuleMachine(capsule_moves(TEXTS, most_steps=30)):
    """Turns, edits, pins, restarts, kills and flipped bits in any order; the world checks each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = CapsuleWorld(Path(self.folder.name))

    @rule(system=st.integers(0, 1), text=st.sampled_from(TEXTS))
    def start(self, system: int, text: str) -> None:
        self.world.start(system, text)

    @precondition(lambda self: self.world.chats)
    @rule(index=CHOICES, text=st.sampled_from(TEXTS))
    def next_turn(self, index: int, text: str) -> None:
        self.world.next_turn(index, text)

    @precondition(lambda self: self.world.chats)
    @rule(index=CHOICES, text=st.sampled_from(TEXTS))
    def edit(self, index: int, text: str) -> None:
        self.world.edit(index, text)

    @rule(index=CHOICES, place=st.integers(0, 1 << 20))
    def damage(self, index: int, place: int) -> None:
        self.world.damage(index, place)


CapsuleMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=14, deadline=None)
TestCapsuleMachine = CapsuleMachine.TestCase


def walk(folder: Path, steps: int = 60) -> None:
    """A fixed random walk through the same moves, with many restarts."""
    dice, world = random.Random(5), CapsuleWorld(folder)
    moves: list[Callable[[int, str], None]] = [
        lambda index, text: world.start(index % 2, text),
        world.next_turn,
        lambda index, text: world.retry(index),
        lambda index, text: world.die(index, text, index * 4),
        lambda index, text: world.pin(index, NAMES[index % 2]),
        lambda index, text: world.damage(index, dice.randrange(1 << 20)),
        lambda index, text: world.restart(),
    ]
    with closing(world):
        world.start(0, "go")
        for _ in range(steps):
            dice.choice(moves)(dice.randrange(8), dice.choice(TEXTS))


def test_the_walk_that_finds_broken_engines_passes_on_the_real_one(tmp_path: Path) -> None:
    walk(tmp_path)


def checksums_not_checked(patch: pytest.MonkeyPatch) -> None:
    """What is read from the disk is believed."""

    def believed(self: CapsuleDisk, file: StoredFile, checksum: int, begin: int, size: int) -> bytes:
        return file.path.read_bytes()[file.data_start + begin :][:size]

    patch.setattr(CapsuleDisk, "_read", believed)


def state_not_restored(patch: pytest.MonkeyPatch) -> None:
    """A restored prefix brings its KV and not its recurrent state."""
    patch.setattr(ReferenceRunner, "write_state", lambda self, row, data: self.clear_state(row))


def blocks_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """The first block of a file is read in place of every other."""
    read = CapsuleDisk.read
    patch.setattr(CapsuleDisk, "read", lambda self, block: read(self, block._replace(number=0)))


@pytest.mark.parametrize("breakage", [checksums_not_checked, state_not_restored, blocks_mixed_up])
def test_a_broken_engine_is_found_out(
    breakage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    breakage(monkeypatch)
    with pytest.raises(AssertionError):
        walk(tmp_path)
