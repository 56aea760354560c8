"""A small world of agents on one engine, where every answer is compared with that of a fresh one."""

from __future__ import annotations

from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import CancelReason, Message, Started
from agentserve.engine.runners.backend import Backend
from engine_rig import Rig

Chat = tuple[Message, ...]
CONFIG = EngineConfig(context_length=1024, exact=True, min_chunk=32, first_chunk=48, max_chunk=48)
NEW_TOKENS = 6
# Of one length, so that what follows lies at the same places in its blocks: only the address tells it apart.
SYSTEMS = ("You are brief. " * 4, "Talk at length " * 4)


class Oracle:
    """Engines that have never seen anything, a new one for each prompt; on the reference model by default."""

    def __init__(self, backend: Backend | None = None) -> None:
        self._backend = backend
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def answer(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that follow a prompt."""
        if prompt not in self._answers:
            rig = Rig(CONFIG, blocks=64, endless=True, backend=self._backend)
            sequence = rig.submit("cold", messages=(), prompt=prompt, max_new_tokens=NEW_TOKENS)
            rig.run()
            self._answers[prompt] = tuple(sequence.output)
        return self._answers[prompt]


REFERENCE = Oracle()


class PrefixWorld:
    """Conversations on an engine with few blocks, so that things are evicted too."""

    def __init__(self, blocks: int = 30, rig: Rig | None = None, oracle: Oracle | None = None) -> None:
        self.rig = rig or Rig(CONFIG, blocks=blocks, endless=True)
        self.oracle = oracle or REFERENCE
        self.chats: list[Chat] = []
        self._asked = 0

    def start(self, system: int, text: str, namespace: str = "") -> None:
        self.answer((Message("system", SYSTEMS[system]), Message("user", text)), namespace)

    def next_turn(self, index: int, text: str) -> None:
        self.answer((*self.chats[index % len(self.chats)], Message("user", text)))

    def retry(self, index: int) -> None:
        self.answer(self.chats[index % len(self.chats)][:-1])

    def edit(self, index: int, text: str) -> None:
        self.answer((*self.chats[index % len(self.chats)][:-2], Message("user", text)))

    def abort(self, index: int, text: str, steps: int) -> None:
        """Sends a turn, hangs up after a few steps and sends it again, as agents do."""
        name = self._name()
        chat = (*self.chats[index % len(self.chats)], Message("user", text))
        if self._fits(chat):
            self.rig.submit(name, messages=chat, max_new_tokens=NEW_TOKENS)
            for _ in range(steps):
                self.rig.engine.step()
            self.rig.engine.cancel(name, CancelReason.CLIENT)
            self.rig.run()
            self.answer(chat)

    def answer(self, chat: Chat, namespace: str = "") -> None:
        """Asks, compares with a cold engine, and lets the conversation go on from there."""
        if not self._fits(chat):
            return
        name = self._name()
        sequence = self.rig.submit(name, messages=chat, max_new_tokens=NEW_TOKENS, namespace=namespace)
        self.rig.run()
        cold = self.oracle.answer(sequence.prompt)
        assert tuple(sequence.output) == cold, f"{self.plan(name)} for {chat}"
        self.chats.append((*chat, Message("assistant", self.rig.text(name))))
        del self.chats[:-8]

    def plan(self, name: str) -> Started:
        (started,) = [e for e in self.rig.events if isinstance(e, Started) and e.request_id == name]
        return started

    def _fits(self, chat: Chat) -> bool:
        return sum(len(m.content or "") + 20 for m in chat) < 600

    def _name(self) -> str:
        self._asked += 1
        return f"r{self._asked}"
