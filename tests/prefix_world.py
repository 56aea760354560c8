"""A small world of agents on one engine, where every answer is compared with that of a fresh one."""

from __future__ import annotations

from functools import cache

from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import CancelReason, Message, Started
from engine_rig import Rig

Chat = tuple[Message, ...]
CONFIG = EngineConfig(context_length=1024, exact=True, min_chunk=32, first_chunk=48, max_chunk=48)
NEW_TOKENS = 6
# Of one length, so that what follows lies at the same places in its blocks: only the address tells it apart.
SYSTEMS = ("You are brief. " * 4, "Talk at length " * 4)


@cache
def cold_answer(chat: Chat) -> str:
    """What an engine that has never seen anything says."""
    rig = Rig(CONFIG, blocks=64, endless=True)
    rig.submit("cold", messages=chat, max_new_tokens=NEW_TOKENS)
    rig.run()
    return rig.text("cold")


class PrefixWorld:
    """Conversations on an engine with few blocks, so that things are evicted too."""

    def __init__(self, blocks: int = 30) -> None:
        self.rig = Rig(CONFIG, blocks=blocks, endless=True)
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
        self.rig.submit(name, messages=chat, max_new_tokens=NEW_TOKENS, namespace=namespace)
        self.rig.run()
        text = self.rig.text(name)
        assert text == cold_answer(chat), f"{self.plan(name)} for {chat}"
        self.chats.append((*chat, Message("assistant", text)))
        del self.chats[:-8]

    def plan(self, name: str) -> Started:
        (started,) = [e for e in self.rig.events if isinstance(e, Started) and e.request_id == name]
        return started

    def _fits(self, chat: Chat) -> bool:
        return sum(len(m.content or "") + 20 for m in chat) < 600

    def _name(self) -> str:
        self._asked += 1
        return f"r{self._asked}"
