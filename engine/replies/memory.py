"""The replies of this worker, found by the text that each was an answer to.

A client sends a reply back as text. Tokenising that text may give other tokens than the ones that were generated,
and then nothing behind the difference could be reused. So each reply is kept under the rendered prompt that it
answered. That prompt holds the system text, the tools, what the template options changed and all earlier turns:
a reply is only found again where all of these are the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple


class Place(NamedTuple):
    """Where a reply begins: the namespace, and the rendered text before it as its length in characters and its
    BLAKE2b-256 digest over UTF-8."""

    namespace: str
    start: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Generated tokens without the one that ended the turn, and the text that they spell as far as the client saw
    it. The tokens may spell more: a stop string is cut from the text alone."""

    tokens: tuple[int, ...]
    text: str


class Found(NamedTuple):
    """Replies that were given at one position of a text, the latest first."""

    start: int
    replies: tuple[Reply, ...]


@dataclass(slots=True)
class ReplyMemory:
    """The last replies, at most `most_replies` with `most_tokens` tokens in all. Any thread may call it."""

    most_replies: int = 1024
    most_tokens: int = 1 << 18
    _replies: OrderedDict[tuple[Place, Reply], None] = field(default_factory=OrderedDict)
    _at: dict[Place, list[Reply]] = field(default_factory=dict)
    _starts: dict[str, Counter[int]] = field(default_factory=dict)
    _tokens: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self._replies)

    def remember(self, place: Place, reply: Reply) -> None:
        """Keeps a reply as the latest one of its place; the oldest of all are forgotten when there are too many."""
        with self._lock:
            if (place, reply) in self._replies:
                self._drop(place, reply)
            self._replies[place, reply] = None
            self._at.setdefault(place, []).append(reply)
            self._starts.setdefault(place.namespace, Counter())[place.start] += 1
            self._tokens += len(reply.tokens)
            while len(self._replies) > self.most_replies or self._tokens > self.most_tokens:
                self._drop(*next(iter(self._replies)))

    def find(self, namespace: str, text: str) -> list[Found]:
        """All replies that were given to a beginning of `text`, by their position; marks them as used."""
        with self._lock:
            starts = sorted(self._starts.get(namespace, ()))
            found = []
            for place in places(namespace, text, starts):
                replies = tuple(reversed(self._at.get(place, ())))
                if replies:
                    found.append(Found(place.start, replies))
                for reply in replies:
                    self._replies.move_to_end((place, reply))
            return found

    def _drop(self, place: Place, reply: Reply) -> None:
        del self._replies[place, reply]
        self._tokens -= len(reply.tokens)
        self._at[place].remove(reply)
        if not self._at[place]:
            del self._at[place]
        starts = self._starts[place.namespace]
        starts[place.start] -= 1
        if not starts[place.start]:
            del starts[place.start]
        if not starts:
            del self._starts[place.namespace]


def places(namespace: str, text: str, starts: list[int]) -> Iterator[Place]:
    """The places behind the first `starts` characters of `text`, which ascend; those past its end are left out.
    One pass over the text, however many they are."""
    digest, done = hashlib.blake2b(digest_size=32), 0
    for start in starts:
        if start > len(text):
            return
        digest.update(text[done:start].encode())
        done = start
        yield Place(namespace, start, digest.digest())


def place_after(namespace: str, text: str) -> Place:
    """The place behind the whole of `text`."""
    return next(places(namespace, text, [len(text)]))
