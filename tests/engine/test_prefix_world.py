"""Random agents on one engine answer as on a fresh one, and broken engines are found out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from agentserve.engine.engine import Engine
from agentserve.engine.prefix import block_cache
from agentserve.engine.sequence import Sequence
from hypothesis import settings
from prefix_world import PrefixWorld
from world_moves import conversation_moves

TEXTS = [
    "go",
    "list the files",
    "list the folders",
    "read main.py " * 4,
    "read main.py and tell me what it does " * 3,
]


class PrefixMachine(conversation_moves(TEXTS, most_steps=9)):
    """Turns, retries, edits, branches and hang-ups in any order; the world checks each answer and the books."""

    def __init__(self) -> None:
        super().__init__()
        self.world = PrefixWorld()


PrefixMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=14, deadline=None)
TestPrefixMachine = PrefixMachine.TestCase


def walk(steps: int = 80) -> None:
    """A fixed random walk through the same moves."""
    dice, world = random.Random(4), PrefixWorld()
    texts = ["go", "list the files", "list the folders", "read main.py and tell me what it does " * 3]
    moves: list[Callable[[int, str], None]] = [
        lambda index, text: world.start(index % 2, text),
        world.next_turn,
        lambda index, text: world.retry(index),
        world.edit,
        lambda index, text: world.abort(index, text, index + 1),
    ]
    world.start(0, "go")
    for _ in range(steps):
        dice.choice(moves)(dice.randrange(8), dice.choice(texts))


def test_the_walk_that_finds_broken_engines_passes_on_the_real_one() -> None:
    walk()


def wrong_parent(patch: pytest.MonkeyPatch) -> None:
    """A block's address forgets what stands before it."""
    chained = block_cache.address
    patch.setattr(block_cache, "address", lambda parent, tokens: chained(b"", tokens))


def not_cut_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    """A request that ends claims its whole prompt, computed or not."""
    forget = Engine._forget

    def claims_all(self: Engine, sequence: Sequence) -> None:
        if sequence.session is not None:
            sequence.session.commit(sequence.prompt[sequence.committed :])
        forget(self, sequence)

    patch.setattr(Engine, "_forget", claims_all)


def state_not_restored(patch: pytest.MonkeyPatch) -> None:
    """A reused prefix brings its KV and not its recurrent state."""
    from agentserve.engine.runners.reference import ReferenceRunner

    patch.setattr(ReferenceRunner, "copy_state", lambda self, source, target: self.clear_state(target))


def tail_not_copied(patch: pytest.MonkeyPatch) -> None:
    """A partly shared block is not copied before it is written to."""
    from agentserve.engine.runners.reference import ReferenceRunner

    patch.setattr(ReferenceRunner, "copy_block", lambda self, source, target: None)


@pytest.mark.parametrize(
    "breakage", [wrong_parent, not_cut_after_an_abort, state_not_restored, tail_not_copied]
)
def test_a_broken_engine_is_found_out(
    breakage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage(monkeypatch)
    with pytest.raises(AssertionError):
        walk()
