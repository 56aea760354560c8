"""What was computed for whom: the tokens of recent conversations, kept to name what happens to the next prompt.

They hold no blocks. How much of a prompt can be reused is decided by `block_cache` alone; this is about telling a
continued conversation from a retry, an edit or a branch.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .protocol import PrefixAction


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation after its last turn. `tokens` are those committed, `turn_start` is where its last user turn
    begins. Times are monotonic seconds."""

    id: str
    namespace: str
    tokens: NDArray[np.int32]
    turn_start: int
    created: float
    used: float
    action: PrefixAction


class Nearest(NamedTuple):
    """The conversation that shares most with a prompt, and how many tokens that is."""

    conversation: Conversation
    common: int


@dataclass(slots=True)
class Conversations:
    """The last `limit` conversations, least recently used first."""

    limit: int = 64
    _items: OrderedDict[tuple[str, str], Conversation] = field(default_factory=OrderedDict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._items.values())

    def get(self, namespace: str, name: str) -> Conversation | None:
        """The conversation of that id; ids of another namespace do not exist for this one."""
        return self._items.get((namespace, name))

    def nearest(self, namespace: str, prompt: Sequence[int]) -> Nearest | None:
        """The one with the longest common prefix, the latest of equals; None when none shares a token."""
        wanted = np.array(prompt, np.int32)
        best: Nearest | None = None
        for item in reversed(self._items.values()):
            if item.namespace == namespace:
                common = common_prefix(item.tokens, wanted)
                if common > (best.common if best else 0):
                    best = Nearest(item, common)
        return best

    def record(
        self, continued: Conversation | None, namespace: str, name: str | None, action: PrefixAction
    ) -> Conversation:
        """The conversation that a prompt continues, or a new one; it becomes the latest."""
        now = time.monotonic()
        if continued is None:
            continued = Conversation(
                name or f"s{next(self._numbers)}", namespace, np.array([], np.int32), 0, now, now, action
            )
        continued.used, continued.action = now, action
        self._items[namespace, continued.id] = continued
        self._items.move_to_end((namespace, continued.id))
        while len(self._items) > self.limit:
            self._items.popitem(last=False)
        return continued


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """The number of leading tokens that both share."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
