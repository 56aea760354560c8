"""The world of `capsule_world` with named sessions: whatever is done to one, the others stay, and answers are cold ones."""

from __future__ import annotations

from pathlib import Path

from agentserve.engine.messages.sessions import (
    DeleteSession,
    ForkSession,
    ListSessions,
    SessionDone,
    SessionInfo,
    SessionList,
    SessionRefused,
    TruncateSession,
)
from agentserve.engine.protocol import Message, PrefixPin, SessionCommand
from capsule_world import CapsuleWorld
from prefix_world import NEW_TOKENS, SYSTEMS, Chat

Held = tuple[int, str, int, int]


class SessionWorld(CapsuleWorld):
    """`held` is the chat that each session of the running engine was last asked to continue."""

    def __init__(self, folder: Path, blocks: int = 30) -> None:
        super().__init__(folder, blocks)
        self.held: dict[str, Chat] = {}

    def open(self, name: str, system: int, text: str, pin: PrefixPin | None = None) -> None:
        """A first turn of a session, whatever it held before."""
        self.say(name, (Message("system", SYSTEMS[system]), Message("user", text)), pin)

    def go_on(self, name: str, text: str, pin: PrefixPin | None = None) -> None:
        """A next turn of a session."""
        if name in self.held:
            self.say(name, (*self.held[name], Message("user", text)), pin)

    def retry(self, name: str) -> None:  # type: ignore[override]
        """The last turn of a session once more."""
        if name in self.held:
            self.say(name, self.held[name][:-1])

    def fork(self, name: str, new: str) -> None:
        before = self._sessions()
        done = self._do(ForkSession("f", name, new_id=new))
        if done is None:
            assert name not in before or new in before
        else:
            assert done.tokens == before[name][0]
            self.held[new] = self.held[name]

    def cut(self, name: str, share: float) -> None:
        """Keeps a share of the tokens of a session."""
        before = self._sessions()
        if name in before:
            wanted = max(1, int(before[name][0] * share))
            done = self._do(TruncateSession("t", name, tokens=wanted))
            assert done is not None
            assert (done.tokens, done.last_action) == (wanted, "truncate")
            assert self._others(name) == {one: held for one, held in before.items() if one != name}

    def forget(self, name: str) -> None:
        existed = name in self._sessions()
        assert (self._do(DeleteSession("d", name)) is not None) is existed
        self.held.pop(name, None)

    def say(self, name: str, chat: Chat, pin: PrefixPin | None = None) -> None:
        """Asks in a session, compares with a cold engine, and all other sessions with what they were."""
        if not self._fits(chat):
            return
        before = {one: held for one, held in self._sessions().items() if one != name}
        asked = self._name()
        sequence = self.rig.submit(asked, messages=chat, max_new_tokens=NEW_TOKENS, session_id=name, pin=pin)
        self.rig.run()
        assert tuple(sequence.output) == self.oracle.answer(sequence.prompt), self.plan(asked)
        assert self.plan(asked).session_id == name
        assert self._others(name) == before
        assert self._sessions()[name][0] == len(sequence.prompt) + NEW_TOKENS - 1
        self.held[name] = (*chat, Message("assistant", self.rig.text(asked)))
        self._check_books()

    def _others(self, name: str) -> dict[str, Held]:
        return {one: held for one, held in self._sessions().items() if one != name}

    def _sessions(self) -> dict[str, Held]:
        self.rig.engine.ask(ListSessions("list"))
        self.rig.run()
        answer = self.rig.events[-1]
        assert isinstance(answer, SessionList)
        return {one.id: (one.tokens, one.last_action, one.turns, one.hits) for one in answer.sessions}

    def _do(self, command: SessionCommand) -> SessionInfo | None:
        self.rig.engine.ask(command)
        self.rig.run()
        answer = self.rig.events[-1]
        assert isinstance(answer, SessionDone | SessionRefused)
        return answer.session if isinstance(answer, SessionDone) else None

    def _replace(self) -> None:
        super()._replace()
        # Sessions end with their worker; what they have computed does not.
        self.held.clear()
