"""The moves of the random walks as rules of hypothesis, for machines whose `world` is one of `prefix_world`."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

CHOICES = st.integers(0, 7)
NAMES = ["one", "two"]


def conversation_moves(texts: list[str], most_steps: int) -> Any:
    """A base class with what agents do: turns, retries, edits, and hang-ups after at most `most_steps` steps."""

    class ConversationMoves(RuleBasedStateMachine):
        world: Any

        @rule(system=st.integers(0, 1), text=st.sampled_from(texts), namespace=st.sampled_from(["", "other"]))
        def start(self, system: int, text: str, namespace: str) -> None:
            self.world.start(system, text, namespace)

        @precondition(lambda self: self.world.chats)
        @rule(index=CHOICES, text=st.sampled_from(texts))
        def next_turn(self, index: int, text: str) -> None:
            self.world.next_turn(index, text)

        @precondition(lambda self: self.world.chats)
        @rule(index=CHOICES)
        def retry(self, index: int) -> None:
            self.world.retry(index)

        @precondition(lambda self: self.world.chats)
        @rule(index=CHOICES, text=st.sampled_from(texts))
        def edit(self, index: int, text: str) -> None:
            self.world.edit(index, text)

        @precondition(lambda self: self.world.chats)
        @rule(index=CHOICES, text=st.sampled_from(texts), steps=st.integers(0, most_steps))
        def abort(self, index: int, text: str, steps: int) -> None:
            self.world.abort(index, text, steps)

    return ConversationMoves


def capsule_moves(texts: list[str], most_steps: int) -> Any:
    """A base class with what people and machines do to a `world` of `capsule_world`: pins, restarts, and kills after
    at most `most_steps` steps. `folder` is the temporary folder of the world."""

    class CapsuleMoves(RuleBasedStateMachine):
        world: Any
        folder: Any

        @precondition(lambda self: self.world.chats)
        @rule(index=CHOICES, name=st.sampled_from(NAMES))
        def pin(self, index: int, name: str) -> None:
            self.world.pin(index, name)

        @rule(name=st.sampled_from(NAMES))
        def unpin(self, name: str) -> None:
            self.world.unpin(name)

        @rule()
        def restart(self) -> None:
            self.world.restart()

        @precondition(lambda self: self.world.chats)
        @rule(index=CHOICES, text=st.sampled_from(texts), steps=st.integers(0, most_steps))
        def die(self, index: int, text: str, steps: int) -> None:
            self.world.die(index, text, steps)

        def teardown(self) -> None:
            self.world.close()
            self.folder.cleanup()

    return CapsuleMoves
