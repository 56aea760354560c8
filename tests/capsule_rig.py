"""An engine whose pins and capsules outlive it in a folder: made anew over the same folder, it is a restart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from agentserve.engine.capsules.disk import CapsuleDisk
from agentserve.engine.capsules.store import CapsuleStore
from agentserve.engine.engine import Engine
from agentserve.engine.prefix.block_cache import BlockCache
from agentserve.engine.prefix.pinning import PinIntake
from agentserve.engine.protocol import (
    GenerateRequest,
    ListPins,
    Message,
    Pin,
    PinDone,
    PinList,
    PinRefused,
    Unpin,
    Unpinned,
)
from agentserve.engine.sequence import Sequence, Stamps
from engine_rig import Rig

Answer = TypeVar("Answer", PinDone, PinRefused, PinList, Unpinned)


@dataclass
class CapsuleRig(Rig):
    """A rig with a disk tier below `folder`, or without one, and a budget for pins."""

    folder: Path | None = None
    fingerprint: str = "reference"
    pin_bytes: int = 1 << 30
    disk_bytes: int = 1 << 30
    intake: PinIntake = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        geometry = self.runner.geometry
        stops = frozenset[int]() if self.endless else self.tokenizer.eos_ids
        state_rows = self.engine.cache.state_rows.size
        cache = BlockCache(self.fingerprint, self.blocks, state_rows, geometry.block_tokens)
        disk = None
        if self.folder is not None:
            disk = CapsuleDisk(self.folder, self.fingerprint, geometry, self.disk_bytes)
        store = CapsuleStore(cache, self.runner, self.pin_bytes, disk)
        self.engine = Engine(self.runner, self.config, stops, cache, self.events.append, store)
        self.intake = PinIntake(self.prompter, geometry.block_tokens)

    def submit(self, request_id: str = "r", text: str = "hello", **fields: object) -> Sequence:
        sequence = super().submit(request_id, text, **fields)
        request = replace(GenerateRequest(request_id, (Message("user", text),)), **fields)  # type: ignore[arg-type]
        self.intake.recent.remember(request_id, request.namespace, self.prompter.prompt(request))
        return sequence

    def settle(self) -> None:
        """Runs until nothing is left to compute or to save."""
        self.run()
        disk = self.engine.capsules.disk
        if disk is not None:
            assert disk.background.settle(30)
            disk.collect()

    def pin(self, pin: Pin, kind: type[Answer] = PinDone) -> Answer:  # type: ignore[assignment]
        """Pins to the end; the answer must be of that kind."""
        self.engine.submit(self.intake.sequence(pin, Stamps(0.0)))
        self.settle()
        return self.last(kind)

    def ask_about(self, message: Unpin | ListPins, kind: type[Answer]) -> Answer:
        self.engine.ask(message)
        self.settle()
        return self.last(kind)

    def pins(self) -> PinList:
        return self.ask_about(ListPins("list"), PinList)

    def last(self, kind: type[Answer]) -> Answer:
        answer = self.events[-1]
        assert isinstance(answer, kind), answer
        return answer

    def restarted(self, **changes: object) -> CapsuleRig:
        """A new engine over the same folder; this one ends without another word, as by kill -9."""
        fields = {
            "config": self.config,
            "blocks": self.blocks,
            "endless": self.endless,
            "backend": self.backend,
            "folder": self.folder,
            "fingerprint": self.fingerprint,
            "pin_bytes": self.pin_bytes,
            "disk_bytes": self.disk_bytes,
        }
        return CapsuleRig(**{**fields, **changes})  # type: ignore[arg-type]
