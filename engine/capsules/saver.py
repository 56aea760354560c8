"""Copies blocks out of the pool for the disk: one at a time, between steps, and never one that is in the way.

A block that waits to be saved is not held: when the pool needs it, the capsule ends before it and is still a good
prefix. What is on disk already is not written again; a pin is written whole, so that it stands alone.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import partial

from ..prefix.block_cache import BlockCache, Node
from ..runners.runner import Runner
from .capsule import Capsule, PinName
from .disk import CapsuleDisk
from .writing import Writing

_LOG = logging.getLogger(__name__)
# Copies that wait for a slow disk may take this much memory.
_MOST_BACKLOG = 64 << 20
_MOST_JOBS = 64
# While requests run, copying may take this share of the time.
_SHARE = 0.01


@dataclass(slots=True, eq=False)
class _Job:
    """A capsule of `nodes`; `capsule` says what was planned, `copied` how many blocks are on their way."""

    nodes: list[Node]
    capsule: Capsule
    copied: int = 0
    writing: Writing | None = None
    states: list[tuple[int, bytes]] = field(default_factory=list)


class CapsuleSaver:
    """Saves from one pool to one folder. Only the engine thread calls it."""

    def __init__(self, cache: BlockCache, disk: CapsuleDisk, runner: Runner) -> None:
        self._cache = cache
        self._disk = disk
        self._runner = runner
        self._jobs: deque[_Job] = deque()
        # Jobs whose last words are with the background thread.
        self._ending: list[_Job] = []
        # Addresses of blocks of either, and of how many.
        self._queued: Counter[bytes] = Counter()
        self._rest_until = 0.0

    def turn_ended(self, namespace: str, leaf: Node) -> None:
        """Saves what is new of a conversation, if that is a block at least."""
        self._forget_ended()
        path = leaf.path()
        new = next((i for i, node in enumerate(path) if not self._is_saved(node)), len(path))
        if any(len(node.tokens) == self._disk.geometry.block_tokens for node in path[new:]):
            self._queue(path[new:], self._capsule(namespace, path[new:]))

    def pinned(self, pin: PinName, leaf: Node, created: float, expires: float | None) -> None:
        """Saves all of a pin; what is on disk under its name is replaced when that is done."""
        self._forget_ended()
        self._drop_jobs(pin)
        path = leaf.path()
        capsule = self._capsule(pin.namespace, path)
        self._queue(path, replace(capsule, name=pin.name, created=created, expires=expires))

    def forget_pin(self, pin: PinName) -> None:
        """Drops what was saved of a pin and what is still to be saved."""
        self._drop_jobs(pin)
        self._disk.forget_pin(pin)

    def _drop_jobs(self, pin: PinName) -> None:
        for job in [job for job in self._jobs if job.capsule.pin == pin]:
            self._end(job)

    def save_some(self, is_busy: bool) -> bool:
        """Copies at most one block. False when there was none to copy, or it is not the time."""
        now = time.perf_counter()
        if not self._jobs or (is_busy and now < self._rest_until):
            return False
        if self._disk.background.backlog > _MOST_BACKLOG:
            self._disk.background.wait_for_room(_MOST_BACKLOG // 2)
            return False
        self._copy_next(self._jobs[0])
        done = time.perf_counter()
        self._rest_until = done + (done - now) / _SHARE
        return True

    def save_all(self, seconds: float) -> None:
        """Copies what is left and waits until it is on disk, for a certain time; the rest is given up."""
        end = time.monotonic() + seconds
        while self._jobs and time.monotonic() < end:
            if not self.save_some(is_busy=False):
                self._disk.background.settle(max(0.0, end - time.monotonic()))
        while self._jobs:
            self._end(self._jobs[0])
        self._disk.background.close(max(0.1, end - time.monotonic()))

    def _is_saved(self, node: Node) -> bool:
        if node.key in self._queued:
            return True
        assert node.parent is not None
        stored = self._disk.find(node.parent.key, node.key, node.tokens)
        return stored is not None and set(node.states) <= set(stored.states)

    def _capsule(self, namespace: str, nodes: list[Node]) -> Capsule:
        first, parent = nodes[0].start, nodes[0].parent
        assert parent is not None
        states = [node.start - first + offset for node in nodes for offset in sorted(node.states)]
        blocks = len(nodes) + len(states)
        return Capsule(
            fingerprint=self._disk.fingerprint,
            namespace=namespace,
            geometry=self._disk.geometry,
            parent=parent.key,
            first=first,
            tokens=tuple(token for node in nodes for token in node.tokens),
            states=tuple(states),
            checksums=(0,) * blocks,
            created=time.time(),
        )

    def _queue(self, nodes: list[Node], capsule: Capsule) -> None:
        turns = [job for job in self._jobs if job.capsule.name is None]
        if len(turns) >= _MOST_JOBS:
            self._end(turns[0])
        self._jobs.append(_Job(nodes, capsule))
        self._queued.update(node.key for node in nodes)

    def _copy_next(self, job: _Job) -> None:
        if job.writing is None and not self._begin(job):
            self._end(job)
            return
        assert job.writing is not None
        node = job.nodes[job.copied]
        if not self._cache.holds(node):
            self._end(job)
            return
        data = self._runner.read_block(node.block)
        for offset, row in sorted(node.states.items()):
            # Only what the header was planned with has room in it.
            if (after := node.start - job.capsule.first + offset) in job.capsule.states:
                job.states.append((after, self._runner.read_state(row)))
        self._disk.background.submit(partial(job.writing.add, data), len(data))
        job.copied += 1
        if job.copied == len(job.nodes):
            self._end(job)

    def _forget_ended(self) -> None:
        """From here on it is the index of the disk that knows what these jobs saved."""
        ended = [job for job in self._ending if job.writing is None or job.writing.done]
        self._disk.collect()
        for job in ended:
            self._ending.remove(job)
            self._queued -= Counter(node.key for node in job.nodes)

    def _begin(self, job: _Job) -> bool:
        job.writing = self._disk.begin(job.capsule)
        if job.writing is None:
            _LOG.warning(
                "a prefix of %d tokens is not kept on disk: its budget is full", len(job.capsule.tokens)
            )
            return False
        self._disk.background.submit(job.writing.begin)
        return True

    def _end(self, job: _Job) -> None:
        self._jobs.remove(job)
        self._ending.append(job)
        if job.writing is None:
            return
        whole = job.copied == len(job.nodes)
        if not job.copied or not (whole or job.capsule.name is None):
            self._disk.background.submit(job.writing.abandon)
            return
        part = replace(
            job.capsule,
            tokens=tuple(token for node in job.nodes[: job.copied] for token in node.tokens),
            states=tuple(after for after, _ in job.states),
        )
        rows = [row for _, row in job.states]
        self._disk.background.submit(partial(job.writing.finish, part, rows))
