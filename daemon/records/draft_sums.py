"""What became of the drafts of several requests, taken together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from ...engine.protocol import DrafterCounts, DraftStats


def total_drafts(stats: Sequence[DraftStats]) -> DraftStats:
    """The sums of all counts."""
    return DraftStats(
        steps=sum(one.steps for one in stats),
        tokens=sum(one.tokens for one in stats),
        emitted=sum(one.emitted for one in stats),
        seconds=sum(one.seconds for one in stats),
        drafters=_drafters(counts for one in stats for counts in one.drafters),
        drafted_at=_places(one.drafted_at for one in stats),
        accepted_at=_places(one.accepted_at for one in stats),
    )


def _drafters(counts: Iterable[DrafterCounts]) -> tuple[DrafterCounts, ...]:
    sums: dict[str, DrafterCounts] = {}
    for one in counts:
        known = sums.get(one.drafter, DrafterCounts(one.drafter, 0, 0, 0, 0))
        sums[one.drafter] = DrafterCounts(
            one.drafter,
            known.attempts + one.attempts,
            known.drafted + one.drafted,
            known.accepted + one.accepted,
            known.full + one.full,
        )
    return tuple(sums.values())


def _places(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
