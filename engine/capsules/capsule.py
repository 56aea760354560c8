"""What a capsule is: an immutable run of KV blocks behind a known prefix, with all that says what it is good for.

A pin's capsule begins at the first token and can stand alone. One of a turn's end holds only the blocks that were
not on disk yet; `parent` is the address of the block before them, so its tokens are proven by the chain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ..runners.runner import KvGeometry

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class PinName(NamedTuple):
    """Pins are named per namespace; equal names of two namespaces are two pins."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Capsule:
    """The header of a capsule file; `checksums` are CRC-32 of its blocks, then of its state rows.

    `first` tokens stand before it, at the end of the block with the address `parent`. Its own `tokens` fill all
    blocks but maybe the last. A state row is the recurrent state after `states[i]` of them. `name` is set for
    pins. Times are unix seconds.
    """

    fingerprint: str
    namespace: str
    geometry: KvGeometry
    parent: bytes
    first: int
    tokens: tuple[int, ...]
    states: tuple[int, ...]
    checksums: tuple[int, ...]
    created: float
    name: str | None = None
    expires: float | None = None

    @property
    def blocks(self) -> int:
        return self.geometry.blocks_for(len(self.tokens))

    @property
    def data_bytes(self) -> int:
        """Bytes of all blocks and state rows."""
        return self.blocks * self.geometry.block_bytes + len(self.states) * self.geometry.state_bytes

    @property
    def pin(self) -> PinName | None:
        return None if self.name is None else PinName(self.namespace, self.name)

    def block_tokens(self, index: int) -> tuple[int, ...]:
        """The tokens of one block."""
        size = self.geometry.block_tokens
        return self.tokens[index * size : (index + 1) * size]


@dataclass(frozen=True, slots=True)
class PinWish:
    """What a sequence that ends in a pin wants: the name, and when the pin expires (unix seconds, None is never).

    An `internal` one restores a pin that was lost; nobody waits for its answer.
    """

    name: PinName
    expires: float | None = None
    internal: bool = False


@dataclass(frozen=True, slots=True)
class PrefixPinJob:
    """What of a request's prompt is to be pinned on the way: its first `tokens` tokens, in whole blocks."""

    wish: PinWish
    tokens: int
    best_effort: bool


def is_pin_name(name: str) -> bool:
    """Whether a pin may be called that: it becomes a part of a file name."""
    return _NAME.fullmatch(name) is not None
