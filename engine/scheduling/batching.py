"""Picks what the next step computes of the sequence whose turn it is: pure decisions.

A plan can carry several sequences; one at a time is the policy of `scheduler`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..runners.runner import SequenceSlice, StepPlan
from ..sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """The tokens of one sequence that a step computes; `samples` when its last row gives the next token.

    The tokens of `draft` are fed behind them, each with a row that says what stands there.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def fed(self) -> tuple[int, ...]:
        return self.tokens + self.draft


def next_work(sequence: Sequence, chunk: int, at_boundaries: bool = False) -> Work:
    """What to compute next of a sequence, at most `chunk` tokens.

    `at_boundaries` lets a step end where recurrent state is worth storing: after the system text, before the last
    user turn, where a pin ends, and before the last token of the prompt, which a repeated prompt has to compute anew.
    """
    if at_boundaries:
        stops = (sequence.stable, sequence.turn_start, sequence.pin_end, len(sequence.prompt) - 1)
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
    count = len(work.fed)
    padding = work.tokens if exact and count == 1 else ()
    rows = tuple(range(len(work.tokens) - 1, count)) if work.samples else ()
    tokens = work.fed + padding
    part = SequenceSlice(
        tokens=tokens,
        past=session.committed,
        block_table=session.blocks_for(session.committed + len(tokens)),
        rows=rows,
        state=session.state_use(count, len(work.draft)),
    )
    return StepPlan((part,))
