"""Picks what the next step computes: pure decisions over the running sequences.

The policy is serial: the oldest request runs until it ends. A plan can carry several sequences, so another
policy is a change to this file and to no other.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from .runner import SequenceSlice, StepPlan
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """The tokens of one sequence that a step computes; `samples` when its last row gives the next token."""

    sequence: Sequence
    tokens: tuple[int, ...]
    samples: bool


def next_work(running: Items[Sequence], chunk: int, at_boundaries: bool = False) -> Work | None:
    """What to compute next, at most `chunk` tokens of it; None when there is nothing to do.

    `at_boundaries` lets a step end where recurrent state is worth storing: after the system text, before the last
    user turn, and before the last token of the prompt, which a repeated prompt has to compute anew.
    """
    if not running:
        return None
    sequence = running[0]
    if at_boundaries:
        stops = (sequence.stable, sequence.turn_start, len(sequence.prompt) - 1)
        chunk = min([chunk, *(stop - sequence.committed for stop in stops if stop > sequence.committed)])
    tokens = tuple(sequence.uncomputed(chunk))
    return Work(sequence, tokens, sequence.committed + len(tokens) == sequence.known)


def plan_step(work: Work, exact: bool) -> StepPlan:
    """The forward pass for `work`.

    In exact mode a single token is fed with a dummy behind it: one-row steps take other kernels than steps of
    two rows and more, and give other bits. The dummy is not committed, so it does not exist afterwards.
    """
    session = work.sequence.session
    assert session is not None, "a sequence without a session can't run"
    count = len(work.tokens)
    padding = work.tokens if exact and count == 1 else ()
    rows = (count - 1,) if work.samples else ()
    tokens = work.tokens + padding
    part = SequenceSlice(
        tokens=tokens,
        past=session.committed,
        block_table=session.blocks_for(session.committed + len(tokens)),
        rows=rows,
        state=session.state_use(count),
    )
    return StepPlan((part,))
