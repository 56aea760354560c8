"""Random turns, forks, cuts, pins on the way and restarts of named sessions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from agentserve.engine.prefix.conversations import Conversation, Conversations
from agentserve.engine.prefix.reuse import PrefixMemory, Reuse
from agentserve.engine.protocol import PrefixPin
from agentserve.engine.sequence import Sequence
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from session_world import SessionWorld

NAMES = st.sampled_from(["one", "two", "three"])
TEXTS = st.sampled_from(["go", "list the files", "read main.py and tell me what it does " * 3])
PINS = st.sampled_from([None, PrefixPin(40, best_effort=True), PrefixPin(100, True), PrefixPin(None, True)])


class SessionMachine(RuleBasedStateMachine):
    """Three sessions, of which every one may be made from another; the world checks each answer and all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.world = SessionWorld(Path(self._folder.name))

    @rule(name=NAMES, system=st.integers(0, 1), text=TEXTS, pin=PINS)
    def open(self, name: str, system: int, text: str, pin: PrefixPin | None) -> None:
        self.world.open(name, system, text, pin)

    @rule(name=NAMES, text=TEXTS, pin=PINS)
    def go_on(self, name: str, text: str, pin: PrefixPin | None) -> None:
        self.world.go_on(name, text, pin)

    @rule(name=NAMES)
    def retry(self, name: str) -> None:
        self.world.retry(name)

    @rule(name=NAMES, new=NAMES)
    def fork(self, name: str, new: str) -> None:
        self.world.fork(name, new)

    @rule(name=NAMES, share=st.floats(0, 1))
    def cut(self, name: str, share: float) -> None:
        self.world.cut(name, share)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.world.forget(name)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    def teardown(self) -> None:
        self.world.close()
        self._folder.cleanup()


SessionMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=14, deadline=None)
TestSessionMachine = SessionMachine.TestCase


def walk(folder: Path) -> None:
    """A fixed walk in which sessions meet."""
    world = SessionWorld(folder)
    world.open("one", 0, "list the files", PrefixPin(100, best_effort=True))
    world.fork("one", "two")
    world.go_on("one", "go")
    world.go_on("two", "read main.py and tell me what it does " * 3)
    world.cut("one", 0.5)
    world.retry("two")
    world.go_on("one", "go", PrefixPin(None, best_effort=True))
    world.restart()
    world.open("one", 0, "list the files")
    world.close()


def test_the_walk_that_finds_broken_sessions_passes_on_the_real_ones(tmp_path: Path) -> None:
    walk(tmp_path)


def forks_are_one(patch: pytest.MonkeyPatch) -> None:
    """A fork is another name for the same session."""

    def same(self: Conversations, source: Conversation, name: str | None) -> Conversation:
        assert name is not None
        self._items[source.namespace, name] = source
        return source

    patch.setattr(Conversations, "fork", same)


def names_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A request goes on with the session that shares most, whatever it names."""
    reuse = PrefixMemory.reuse

    def nameless(self: PrefixMemory, sequence: Sequence) -> Reuse:
        name, sequence.session_id = sequence.session_id, None
        found = reuse(self, sequence)
        sequence.session_id = name
        return found

    patch.setattr(PrefixMemory, "reuse", nameless)


@pytest.mark.parametrize("breakage", [forks_are_one, names_are_ignored])
def test_broken_sessions_are_found_out(
    breakage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    breakage(monkeypatch)
    with pytest.raises(AssertionError):
        walk(tmp_path)
