"""The world of `prefix_world` with pins, a disk tier and restarts: whatever happens, answers are those of a cold engine."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import NamedTuple

from agentserve.engine.capsules.files import read_header
from agentserve.engine.protocol import (
    GenerateRequest,
    LoadModel,
    Message,
    Pin,
    PinDone,
    PinRefused,
    Unpin,
    Unpinned,
)
from agentserve.engine.runners.backend import Backend
from agentserve.engine.runners.reference_model import open_reference
from agentserve.engine.sequence import Stamps
from capsule_rig import CapsuleRig
from prefix_world import CONFIG, NEW_TOKENS, REFERENCE, Chat, Oracle, PrefixWorld

# What fits on the disk, in blocks without headers.
PER_DISK = 73


class Models(NamedTuple):
    """The model that lives in the world, and another one of its kind that knows nothing."""

    warm: Backend
    oracle: Oracle


class CapsuleWorld(PrefixWorld):
    """Few blocks, a small disk, and a folder that outlives every engine."""

    rig: CapsuleRig

    def __init__(self, folder: Path, blocks: int = 30, models: Models | None = None) -> None:
        warm, oracle = models or (open_reference(LoadModel("reference", None)), REFERENCE)
        size = warm.runner.geometry.block_bytes
        rig = CapsuleRig(
            CONFIG,
            blocks,
            endless=True,
            backend=warm,
            folder=folder,
            pin_bytes=8 * size,
            disk_bytes=PER_DISK * size,
        )
        super().__init__(blocks, rig, oracle)
        self.folder = folder

    def answer(self, chat: Chat, namespace: str = "") -> None:
        super().answer(chat, namespace)
        self._check_books()

    def restart(self) -> None:
        """All is on disk when the worker ends."""
        self.rig.settle()
        self._replace()

    def die(self, index: int, text: str, steps: int) -> None:
        """Kills the worker after some steps of a turn, with whatever is on disk by then, and asks again."""
        chat = (*self.chats[index % len(self.chats)], Message("user", text))
        if self._fits(chat):
            self.rig.submit(self._name(), messages=chat, max_new_tokens=NEW_TOKENS)
            for _ in range(steps):
                self.rig.engine.step()
            self._replace()
            self.answer(chat)

    def pin(self, index: int, name: str) -> None:
        """Pins what a conversation has, if it fits the budget."""
        request = GenerateRequest("", self.chats[index % len(self.chats)])
        self.rig.engine.submit(
            self.rig.intake.sequence(Pin(self._name(), name, request=request), Stamps(0.0))
        )
        self.rig.settle()
        assert isinstance(self.rig.events[-1], PinDone | PinRefused)
        self._check_books()

    def unpin(self, name: str) -> None:
        self.rig.engine.ask(Unpin(self._name(), name))
        self.rig.settle()
        assert isinstance(self.rig.events[-1], Unpinned | PinRefused)

    def damage(self, index: int, place: int) -> None:
        """Flips a bit of a block or state row that is on disk. Headers of pins are spared: they hold the name."""
        self.rig.settle()
        stored = sorted(self.folder.glob("*.safetensors"))
        if stored:
            path = stored[index % len(stored)]
            opened = read_header(path)
            data = bytearray(path.read_bytes())
            # The byte of a number that holds its sign and exponent, so that it can't go unnoticed.
            word = place % ((len(data) - opened.data_start) // 4)
            data[opened.data_start + 4 * word + 3] ^= 0x40
            path.write_bytes(data)

    def close(self) -> None:
        """Ends the engine, and closes the files that killed ones left open, lest a later test is blamed for them."""
        self.rig.engine.capsules.close()
        gc.collect()

    def _replace(self) -> None:
        disk = self.rig.engine.capsules.disk
        assert disk is not None
        disk.background.close()
        self.rig = self.rig.restarted()

    def _check_books(self) -> None:
        self.rig.settle()
        listed = self.rig.pins()
        assert listed.used_bytes <= listed.budget_bytes
        on_disk = sum(path.stat().st_size for path in self.folder.iterdir())
        assert on_disk <= listed.disk_bytes <= listed.disk_budget_bytes
