"""What of a prompt is reused, what that is called, and why the rest is not: a pure function.

    common part of prompt (n tokens) and the nearest conversation (c tokens): m tokens

    exact      the whole prompt is known and no conversation is cut by it
    append     the prompt extends the conversation: m = c < n
    message_append  it does, and only because its replies kept their own tokens (see `transcripts`)
    truncate   it ends or diverges inside the conversation, at its last user turn or by its name: retry, edit
    fork       it shares a beginning with something that stays alive; a request that names a conversation leaves all
               others as they are
    restore    some of it had to be read from the disk, whatever else it is
    rebuild    nothing could be reused; always with a reason

Reuse never depends on these names: it is the longest known prefix, whoever computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol import MissReason, PrefixAction
from .conversations import Conversation, Nearest


@dataclass(frozen=True, slots=True)
class Known:
    """What the index says of a prompt: `usable` tokens can be taken over, `stored` tokens are known.

    They differ where the last token must be computed again for its logits, and where recurrent state was stored
    at fewer places than tokens. `goes_on` is set when all known text ends where the stored tokens do. `evicted` is
    set when the block after the known ones was there once. `restored` of the usable tokens were just read from the
    disk; `lost` is why a pin that the prompt extends could not be.
    """

    usable: int
    stored: int
    namespace_empty: bool
    goes_on: bool = False
    evicted: bool = False
    restored: int = 0
    lost: MissReason | None = None


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """The outcome for one prompt. `cached_tokens + new_tokens` is its length.

    `first_difference` is the position of the first token that parts it from the nearest known text, None when it
    only goes on where that, or the conversation that it continues, ends. `continues` is the conversation that this prompt is the next turn of; None for a new
    one.
    """

    action: PrefixAction
    cached_tokens: int
    new_tokens: int
    miss_reason: MissReason | None
    first_difference: int | None
    continues: Conversation | None


def plan_prefix(
    prompt_tokens: int,
    known: Known,
    nearest: Nearest | None,
    named: Conversation | None,
    canonical: int | None = None,
    names_one: bool = False,
) -> PrefixPlan:
    """Plans a prompt of `prompt_tokens` tokens. `names_one` is set when the request asks for a certain conversation,
    which is `named` if it exists.

    From token `canonical` on the prompt differs from what tokenising its text would give; None when nowhere.
    """
    action, continues = _action(prompt_tokens, known, nearest, named, names_one)
    if action == "append" and canonical is not None and known.usable > canonical:
        action = "message_append"
    if known.restored:
        action = "restore"
    if not known.usable:
        action, continues = "rebuild", named
    difference = _first_difference(prompt_tokens, known, nearest)
    return PrefixPlan(
        action=action,
        cached_tokens=known.usable,
        new_tokens=prompt_tokens - known.usable,
        miss_reason=_miss_reason(prompt_tokens, known, difference),
        first_difference=difference,
        continues=continues,
    )


def _action(
    n: int, known: Known, nearest: Nearest | None, named: Conversation | None, names_one: bool
) -> tuple[PrefixAction, Conversation | None]:
    covered = known.stored >= n
    if nearest is None or nearest.common > known.stored:
        # The conversation is remembered, but blocks of it are gone: only what is left counts.
        return ("exact" if covered else "fork"), named
    conversation, m = nearest
    if names_one and conversation is not named:
        return ("exact" if covered else "fork"), named
    c = len(conversation.tokens)
    if m == c:
        return ("exact" if n == c else "append"), conversation
    if conversation is named or m >= conversation.turn_start:
        return "truncate", conversation
    return ("exact" if covered else "fork"), named


def _first_difference(n: int, known: Known, nearest: Nearest | None) -> int | None:
    shared = nearest.common if nearest else 0
    common = max(known.stored, shared)
    if common >= n:
        return None
    if nearest is not None and shared == len(nearest.conversation.tokens):
        return None
    return None if known.goes_on and shared < common else common


def _miss_reason(n: int, known: Known, difference: int | None) -> MissReason | None:
    """Why less was reused than the prompt has in common with what was computed before, or could have."""
    if known.lost is not None:
        return known.lost
    if known.namespace_empty:
        return "cold"
    if n <= 1:
        return "too_short"
    if known.evicted:
        return "evicted"
    if known.usable < min(known.stored, n - 1):
        return "no_checkpoint"
    if difference is None:
        return None
    return "diverged" if difference else "diverged_at_start"
