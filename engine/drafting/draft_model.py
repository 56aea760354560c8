"""A second, smaller model that drafts: what all sequences share of it, and what one sequence has computed in it.

It has blocks and an index of its own, so that the next turn of a conversation finds there what this one computed.

    position   0 ............ committed ............ known ........ drafted
               │ known, KV computed │ to be computed │ guessed one by one │
    next turn  │                                     │ what came true is committed, the rest is written over │
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..prefix.block_cache import BlockCache, common
from ..prefix.integrity import Holders, IntegrityCheck
from ..prefix.kv_pool import OutOfBlocks
from ..prefix.session import Session
from ..runners.runner import Logits, Runner, SequenceSlice, StepPlan
from .cost_probe import KeptCosts
from .suffix_index import SuffixIndex

Choose = Callable[[Logits], int]

# A step of the model waits for no more than so many tokens to be caught up with.
CHUNK = 256
# Room is taken for so many tokens at a time.
_ROOM_TOKENS = 256


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model, with pools allocated. It has no recurrent state.

    `vocab_size` token ids mean the same to both models, and the other one has logits for `rows`. `share` is how large it is, in parameters for each of the
    model that it drafts for. Nothing is drafted behind one of `ends`.
    """

    runner: Runner
    cache: BlockCache
    context_length: int
    vocab_size: int
    rows: int
    share: float
    ends: frozenset[int]
    costs_file: Path | None = None


class DraftPool:
    """The sessions that sequences have in a draft model, and what its steps cost; engine thread only."""

    def __init__(self, model: DraftModel) -> None:
        self.model = model
        self.costs = KeptCosts(model.runner, model.cache, model.costs_file)
        self._open: set[Session] = set()
        self.integrity = IntegrityCheck(model.cache, self._holders)

    def open(self, namespace: str, tokens: Items[int]) -> Session:
        """A session with what is known of all but the last of `tokens`, and room to go on. Raises OutOfBlocks."""
        model, geometry = self.model, self.model.runner.geometry
        session = Session(model.cache, geometry, namespace)
        match = model.cache.match(namespace, tokens, len(tokens) - 1)
        session.begin(match, self._room_for(len(tokens)), model.runner)
        self._open.add(session)
        return session

    def remembered(self, namespace: str, tokens: Items[int]) -> int:
        """How many of all but the last of `tokens` a session would find computed."""
        return self.model.cache.match(namespace, tokens, len(tokens) - 1).length

    def close(self, session: Session) -> None:
        """Gives a session's blocks back; what was computed is remembered."""
        self._open.remove(session)
        session.close()

    def blocks_for(self, tokens: int) -> int:
        """How many blocks a session with so many known tokens takes."""
        return self.model.runner.geometry.blocks_for(self._room_for(tokens))

    def forward(self, session: Session, tokens: Items[int], past: int, samples: bool) -> Logits:
        """Computes `tokens` behind `past` others; the last row when it `samples`."""
        rows = (len(tokens) - 1,) if samples else ()
        table = session.blocks_for(past + len(tokens))
        plan = StepPlan((SequenceSlice(tuple(tokens), past, table, rows),))
        begun = time.perf_counter()
        logits = self.model.runner.forward(plan)
        self.costs.table.observe(len(tokens), past, time.perf_counter() - begun)
        return logits

    def row(self, logits: Logits) -> Logits:
        """The last row of a step, float32 [rows]: the logits of tokens that both models have, and none for others."""
        shared, rows = self.model.vocab_size, self.model.rows
        if shared == rows:
            return logits[-1, :shared]
        row = np.full(rows, -np.inf, np.float32)
        row[:shared] = logits[-1, :shared]
        return row

    def _room_for(self, tokens: int) -> int:
        return min(tokens + _ROOM_TOKENS, self.model.context_length)

    def _holders(self) -> Holders:
        return Holders([session.block_table for session in self._open], ())


class DraftSession:
    """What the draft model has computed of one sequence, whose known tokens are `text`.

    `choose` makes a token of a row of logits. It opens when it is first asked for something. A sequence that
    finds no room, or has tokens that the draft model lacks, goes without: it is `shut`, for good.
    """

    def __init__(self, pool: DraftPool, namespace: str, text: SuffixIndex, choose: Choose) -> None:
        self._pool = pool
        self._namespace = namespace
        self._text = text
        self._choose = choose
        self._session: Session | None = None
        # Drafted tokens whose KV lies behind the committed ones.
        self._ahead: list[int] = []
        self._remembered: int | None = None
        self.shut = False

    @property
    def behind(self) -> int:
        """How many of the known tokens are not computed yet: at least the last one."""
        if self._session is not None:
            self._take_what_came_true(self._session)
            return len(self._text) - self._session.committed
        if self._remembered is None:
            self._remembered = self._pool.remembered(self._namespace, self._text.tokens.tolist())
        return len(self._text) - self._remembered

    def catch_up(self) -> None:
        """Computes a chunk of the known tokens, if there are more than that."""
        session = self._ready(0)
        if session is not None and self.behind > CHUNK:
            self._compute(session, session.committed + CHUNK, samples=False)

    def guesses(self, most: int) -> Iterator[int]:
        """What the draft model says behind the known tokens, at most `most` tokens, each computed when it is asked for."""
        session = self._ready(most)
        if session is None:
            return
        self._take_what_came_true(session)
        logits = self._compute(session, len(self._text), samples=True)
        if logits is None:
            return
        for position in range(len(self._text), len(self._text) + most):
            token = self._choose(self._pool.row(logits))
            yield token
            logits = self._pool.forward(session, (token,), position, samples=True)
            self._ahead.append(token)

    def close(self) -> None:
        """Gives everything back; nothing is drafted any more."""
        if self._session is not None:
            self._pool.close(self._session)
        self._session, self._ahead, self.shut = None, [], True

    def _compute(self, session: Session, end: int, *, samples: bool) -> Logits | None:
        """Computes the known tokens up to `end`; None when the draft model has no such tokens."""
        tokens = self._known(session.committed, end)
        if max(tokens) >= self._pool.model.vocab_size:
            self.close()
            return None
        logits = self._pool.forward(session, tokens, session.committed, samples)
        session.commit(tokens)
        return logits

    def _known(self, start: int, end: int) -> list[int]:
        tokens: list[int] = self._text.tokens[start:end].tolist()
        return tokens

    def _ready(self, more: int) -> Session | None:
        """The session with room for `more` tokens behind the known ones; None when there is no room."""
        known = len(self._text)
        try:
            if self._session is None and not self.shut:
                self._session = self._pool.open(self._namespace, self._text.tokens.tolist())
            if self._session is not None and self._session.room < known + more:
                self._session.grow(self._pool.blocks_for(known) - len(self._session.block_table))
        except OutOfBlocks:
            self.close()
        return self._session

    def _take_what_came_true(self, session: Session) -> None:
        """Commits the drafted tokens that are known now. Not the last known one: what it gives is asked for."""
        if self._ahead:
            known = self._known(session.committed, len(self._text) - 1)
            session.commit(self._ahead[: common(self._ahead, known)])
            self._ahead = []
