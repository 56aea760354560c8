"""What of a prompt is reused: asks pool, disk and conversations, and has the planner name the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..capsules.store import CapsuleStore, Fetched
from ..messages.prefix import TextDifference
from ..sequence import Sequence
from .block_cache import BlockCache, Match
from .conversations import Conversations, Nearest
from .differences import known_text
from .planner import Known, PrefixPlan, plan_prefix


class Reuse(NamedTuple):
    """The prefix that is taken over, what that is called, what the disk had to do with it, and, for a request that
    asks for it, where the prompt parts from what is known."""

    match: Match
    plan: PrefixPlan
    fetched: Fetched
    difference: TextDifference | None


@dataclass(frozen=True, slots=True)
class PrefixMemory:
    """All that a worker remembers. Engine thread only."""

    cache: BlockCache
    capsules: CapsuleStore
    conversations: Conversations

    def reuse(self, sequence: Sequence) -> Reuse:
        """Finds the longest known prefix, brings it from the disk where need be, and marks it as just used."""
        namespace, prompt = sequence.namespace, sequence.prompt
        # The last token is computed again for its logits, where those are wanted.
        most = len(prompt) - (sequence.pin is None)
        fetched = self.capsules.fetch(namespace, prompt, most)
        found = self.cache.longest(namespace, prompt)
        match = self._usable(sequence, found, most)
        self.cache.touch(match)
        named = self.conversations.get(namespace, sequence.session_id) if sequence.session_id else None
        nearest = self.conversations.nearest(namespace, prompt, named)
        known = self._known(sequence, found, match, fetched)
        plan = plan_prefix(
            len(prompt), known, nearest, named, sequence.canonical, names_one=sequence.session_id is not None
        )
        return Reuse(match, plan, fetched, self._difference(sequence, plan, nearest, found))

    def _usable(self, sequence: Sequence, found: Match, most: int) -> Match:
        """What can be taken over. A pin needs the recurrent state at its end, so where the model has one and it is
        not stored there, no more is taken over than comes before it."""
        if sequence.pin_end:
            before_pin = self.cache.usable(found, sequence.pin_end)
            if before_pin.length < sequence.pin_end:
                return before_pin
        return self.cache.usable(found, most)

    def _known(self, sequence: Sequence, found: Match, match: Match, fetched: Fetched) -> Known:
        """`found` is all that is known of the prompt, `match` the part of it that is taken over."""
        return Known(
            usable=match.length,
            stored=found.length,
            namespace_empty=not self.cache.knows(sequence.namespace),
            goes_on=found.goes_on and not self.capsules.knows_more(found),
            evicted=self.cache.was_evicted(match, sequence.prompt),
            restored=fetched.restored,
            lost=fetched.lost[0].lost if fetched.lost else None,
        )

    def _difference(
        self, sequence: Sequence, plan: PrefixPlan, nearest: Nearest | None, found: Match
    ) -> TextDifference | None:
        position = plan.first_difference
        if sequence.explain is None or position is None:
            return None
        known = known_text(self.conversations, sequence.namespace, nearest, found, position)
        return sequence.explain.difference(sequence.prompt, position, known) if known else None
