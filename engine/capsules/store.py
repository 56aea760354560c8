"""Pins by name, their budget, and what goes to the disk and comes from it: all that outlives a request on purpose.

A pin in the pool holds its blocks (and its state row), so that they are never evicted. One that is only on disk, after
a restart, is held again when the next request that extends it has brought it back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..prefix.block_cache import BlockCache, Match, Node
from ..protocol import (
    ListPins,
    MissReason,
    PinAnswer,
    PinInfo,
    PinList,
    PinRefused,
    PinTier,
    TierBytes,
    Unpin,
    Unpinned,
)
from ..runners.runner import Runner
from .capsule import PinName, PinWish
from .disk import CapsuleDisk
from .restore import Restorer
from .saver import CapsuleSaver

# What a graceful end may spend on saving.
_SAVE_AT_END_S = 2.0


@dataclass(slots=True)
class Pin:
    """A named prefix. `leaf` is its last block while the pool holds it; `lost` is why the disk can't give it back."""

    name: PinName
    tokens: tuple[int, ...]
    created: float
    expires: float | None = None
    leaf: Node | None = None
    holds_state: bool = False
    lost: MissReason | None = None
    hits: int = 0
    last_used: float | None = None

    def covers(self, namespace: str, prompt: Sequence[int]) -> bool:
        """Whether a prompt extends this pin."""
        count = len(self.tokens)
        return self.name.namespace == namespace and tuple(prompt[:count]) == self.tokens


class Fetched(NamedTuple):
    """What the disk did for a prompt: how many tokens it added, and the pins that must be computed again."""

    restored: int = 0
    lost: tuple[Pin, ...] = ()


class _Booking(NamedTuple):
    """Room for a pin that is still being computed."""

    name: PinName
    size: int


class CapsuleStore:
    """The pins of one pool, at most `budget_bytes` of it, with or without a disk behind. Engine thread only."""

    def __init__(
        self, cache: BlockCache, runner: Runner, budget_bytes: int = 0, disk: CapsuleDisk | None = None
    ) -> None:
        self.budget_bytes = budget_bytes
        self.disk = disk
        self._cache = cache
        self._geometry = runner.geometry
        self._pins: dict[PinName, Pin] = {}
        self._booked: dict[str, _Booking] = {}
        self._saver = None if disk is None else CapsuleSaver(cache, disk, runner)
        self._restorer = None if disk is None else Restorer(cache, disk, runner)
        self._find_pins()

    # ---- what requests do

    def fetch(self, namespace: str, prompt: Sequence[int], most: int) -> Fetched:
        """Brings what a prompt can reuse, `most` tokens at most, from the disk into the pool."""
        self._drop_expired()
        restored = 0
        if self._restorer is not None:
            restored = self._restorer.restore(namespace, prompt, most)
        lost = tuple(pin for pin in self._covering(namespace, prompt) if not self._is_back(pin))
        return Fetched(restored, lost)

    def knows_more(self, match: Match) -> bool:
        """Whether text lies on disk that goes on where a match of the pool ends."""
        if self.disk is None or not match.length:
            return False
        last = match.tail or match.nodes[-1]
        if match.tail is None:
            return any(self.disk.following(last.key))
        assert last.parent is not None
        begun = last.tokens[: match.part]
        longer = (block.tokens for block in self.disk.following(last.parent.key))
        return any(len(tokens) > match.part and tokens[: match.part] == begun for tokens in longer)

    def reused(self, namespace: str, prompt: Sequence[int], cached: int) -> None:
        """Counts the pins that a request with so many cached tokens made use of."""
        for pin in self._covering(namespace, prompt):
            if cached >= len(pin.tokens):
                pin.hits += 1
                pin.last_used = time.time()

    def turn_ended(self, namespace: str, leaf: Node) -> None:
        """Keeps what a request has computed, up to the block `leaf`, on disk too."""
        if self._saver is not None and leaf.tokens:
            self._saver.turn_ended(namespace, leaf)

    def save_some(self, is_busy: bool) -> bool:
        """Copies at most one block towards the disk; False when there is nothing to do now."""
        return self._saver is not None and self._saver.save_some(is_busy)

    def close(self) -> None:
        """Saves what is left, within two seconds, and ends the background thread."""
        if self._saver is not None:
            self._saver.save_all(_SAVE_AT_END_S)

    # ---- pins

    def refusal(self, request_id: str, wish: PinWish, tokens: Sequence[int]) -> PinRefused | None:
        """Why so many tokens can't be pinned; None when they fit the budget. Changes nothing."""
        if not self.budget_bytes:
            message = "pins are switched off (capsule_budget is 0)"
            return PinRefused(request_id, 400, "capsules_disabled", message)
        wanted = self._wanted(wish.name, tokens)
        booked = sum(booking.size for booking in self._booked.values() if booking.name != wish.name)
        free = self.budget_bytes - self._used_bytes(but=wish.name) - booked
        if wanted <= free:
            return None
        message = f"the pin takes {wanted:,} bytes and {max(free, 0):,} are free (capsule_budget)"
        return PinRefused(
            request_id, 503, "capsule_over_budget", message, wanted_bytes=wanted, free_bytes=max(free, 0)
        )

    def reserve(self, request_id: str, wish: PinWish, tokens: Sequence[int]) -> PinRefused | None:
        """Books the room for a pin that is to be computed, until `release`; else why it can't be had."""
        refusal = self.refusal(request_id, wish, tokens)
        if refusal is None:
            self._booked[request_id] = _Booking(wish.name, self._wanted(wish.name, tokens))
        return refusal

    def release(self, request_id: str) -> None:
        """Gives up what a request has booked, if anything: its pin is made or will not be."""
        self._booked.pop(request_id, None)

    def pin(self, wish: PinWish, leaf: Node) -> tuple[PinInfo, bool]:
        """Pins what is known up to the block `leaf`. Returns the pin, and whether it replaced one of that name."""
        tokens = tuple(token for node in leaf.path() for token in node.tokens)
        old = self._pins.pop(wish.name, None)
        pin = Pin(wish.name, tokens, time.time(), wish.expires)
        if old is not None and wish.internal:
            pin.created, pin.hits, pin.last_used = old.created, old.hits, old.last_used
        self._pins[wish.name] = pin
        self._hold(pin, leaf)
        if old is not None:
            self._let_go(old)
        if self._saver is not None:
            self._saver.pinned(pin.name, leaf, pin.created, pin.expires)
        return self._info(pin), old is not None

    def answer(self, message: Unpin | ListPins) -> PinAnswer:
        """Does what the daemon asks about pins."""
        self._drop_expired()
        if isinstance(message, ListPins):
            return self._list(message)
        name = PinName(message.namespace, message.name)
        if name not in self._pins:
            return PinRefused(
                message.request_id, 404, "pin_not_found", f"There is no pin {message.name!r}", "name"
            )
        info = self._info(self._pins[name])
        self._unpin(name)
        return Unpinned(message.request_id, info)

    def has(self, wish: PinWish) -> bool:
        """Whether there is a pin of that name now."""
        return wish.name in self._pins

    def holds(self, name: PinName) -> bool:
        """Whether there is a pin of that name and the pool holds it."""
        return name in self._pins and self._pins[name].leaf is not None

    # ---- the books

    def tiers(self) -> TierBytes:
        """What the pool, pins and the disk take now of what they may."""
        blocks, size = self._cache.blocks, self._geometry.block_bytes
        if self.disk is not None:
            self.disk.collect()
        return TierBytes(
            pool=(blocks.used + blocks.cached) * size,
            pool_budget=blocks.size * size,
            pinned=self._used_bytes(),
            pinned_budget=self.budget_bytes,
            disk=self.disk.used_bytes if self.disk is not None else 0,
            disk_budget=self.disk.budget_bytes if self.disk is not None else 0,
        )

    def holders(self) -> list[list[int]]:
        """The blocks that each pin holds."""
        return [
            [node.block for node in pin.leaf.path()] for pin in self._pins.values() if pin.leaf is not None
        ]

    def _list(self, message: ListPins) -> PinList:
        tiers = self.tiers()
        asked = message.namespace
        pins = [pin for pin in self._pins.values() if asked is None or pin.name.namespace == asked]
        return PinList(
            request_id=message.request_id,
            pins=tuple(self._info(pin) for pin in sorted(pins, key=lambda pin: pin.name)),
            used_bytes=tiers.pinned,
            budget_bytes=tiers.pinned_budget,
            disk_bytes=tiers.disk,
            disk_budget_bytes=tiers.disk_budget,
        )

    def _info(self, pin: Pin) -> PinInfo:
        stored = self.disk.pin(pin.name) if self.disk is not None else None
        on_disk = stored is not None and stored.usable
        tier: PinTier = "pool" if pin.leaf is not None else "disk" if on_disk else "lost"
        return PinInfo(
            name=pin.name.name,
            namespace=pin.name.namespace,
            tokens=len(pin.tokens),
            bytes=self._size(len(pin.tokens)),
            tier=tier,
            on_disk=on_disk,
            hits=pin.hits,
            created=pin.created,
            last_used=pin.last_used,
            expires=pin.expires,
        )

    def _wanted(self, name: PinName, tokens: Sequence[int]) -> int:
        """What a pin takes beyond the blocks that it shares with others."""
        others = self._held_blocks(but=name)
        nodes = self._cache.longest(name.namespace, tokens).nodes
        shared = sum(node.block in others for node in nodes)
        return self._size(len(tokens)) - shared * self._geometry.block_bytes

    def _size(self, tokens: int) -> int:
        return self._geometry.blocks_for(tokens) * self._geometry.block_bytes + self._geometry.state_bytes

    def _held_blocks(self, but: PinName | None = None) -> set[int]:
        held = (pin.leaf for name, pin in self._pins.items() if pin.leaf is not None and name != but)
        return {node.block for leaf in held for node in leaf.path()}

    def _used_bytes(self, but: PinName | None = None) -> int:
        states = sum(pin.leaf is not None for name, pin in self._pins.items() if name != but)
        blocks = len(self._held_blocks(but))
        return blocks * self._geometry.block_bytes + states * self._geometry.state_bytes

    # ---- holding and letting go

    def _covering(self, namespace: str, prompt: Sequence[int]) -> Iterator[Pin]:
        return (pin for pin in self._pins.values() if pin.covers(namespace, prompt))

    def _is_back(self, pin: Pin) -> bool:
        """Holds a pin whose blocks are in the pool again. False when it can't come back from the disk."""
        if pin.leaf is not None:
            return True
        if self._restorer is not None:
            # A longer prefix may have come from elsewhere, without the state at the end of the pin.
            self._restorer.restore(pin.name.namespace, pin.tokens, len(pin.tokens))
        match = self._cache.match(pin.name.namespace, pin.tokens, len(pin.tokens))
        if match.length == len(pin.tokens) and match.tail is None:
            if self.refusal("", PinWish(pin.name), pin.tokens) is None:
                self._hold(pin, match.nodes[-1])
            return True
        stored = self.disk.pin(pin.name) if self.disk is not None else None
        if pin.lost is None and (stored is None or not stored.usable):
            pin.lost = "capsule_damaged"
        return pin.lost is None

    def _hold(self, pin: Pin, leaf: Node) -> None:
        self._cache.blocks.retain(node.block for node in leaf.path())
        pin.holds_state = len(leaf.tokens) in leaf.states
        if pin.holds_state:
            self._cache.pin_state(leaf, len(leaf.tokens))
        pin.leaf, pin.lost = leaf, None

    def _let_go(self, pin: Pin) -> None:
        leaf, pin.leaf = pin.leaf, None
        if leaf is None:
            return
        if pin.holds_state:
            self._cache.unpin_state(leaf, len(leaf.tokens))
        self._cache.blocks.release(node.block for node in reversed(leaf.path()))

    def _unpin(self, name: PinName) -> None:
        self._let_go(self._pins.pop(name))
        if self._saver is not None:
            self._saver.forget_pin(name)

    def _drop_expired(self) -> None:
        now = time.time()
        for pin in list(self._pins.values()):
            if pin.expires is not None and pin.expires <= now:
                self._unpin(pin.name)

    def _find_pins(self) -> None:
        """Takes note of the pins that an earlier run left on disk."""
        for file in self.disk.pins() if self.disk is not None else ():
            name, capsule = file.capsule.pin, file.capsule
            assert name is not None
            pin = Pin(name, capsule.tokens, capsule.created, capsule.expires)
            if not file.usable:
                assert self.disk is not None
                is_ours = capsule.fingerprint == self.disk.fingerprint
                pin.lost = "capsule_damaged" if is_ours else "fingerprint_mismatch"
            self._pins[name] = pin
