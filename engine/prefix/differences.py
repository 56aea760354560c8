"""Shows where a prompt parts from the nearest known text. For whoever sent the prompt alone: it goes into no log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..messages.prefix import TextDifference
from ..text.tokenise import Tokenizer
from .block_cache import Match, Node, Tokens
from .conversations import Conversations, Nearest

MOST_CHARACTERS = 200
"""The most that is told of each of the three texts. A token may have no character, so texts may be shorter."""


@dataclass(frozen=True, slots=True)
class Explainer:
    """Spells tokens of one model for people."""

    tokenizer: Tokenizer

    def difference(self, prompt: Sequence[int], position: int, known: Sequence[int]) -> TextDifference:
        """`known` are the tokens that stand from `position` on where the prompt has others."""
        end = position + MOST_CHARACTERS
        return TextDifference(
            position=position,
            shared=self._spell(prompt[max(0, position - MOST_CHARACTERS) : position])[-MOST_CHARACTERS:],
            known=self._spell(known[:MOST_CHARACTERS])[:MOST_CHARACTERS],
            prompt=self._spell(prompt[position:end])[:MOST_CHARACTERS],
        )

    def _spell(self, tokens: Iterable[int]) -> str:
        return b"".join(self.tokenizer.spelling(int(token)) for token in tokens).decode("utf-8", "replace")


def known_text(
    conversations: Conversations, namespace: str, nearest: Nearest | None, found: Match, position: int
) -> Sequence[int]:
    """The tokens that are known from `position` on, where a prompt has others: of the nearest conversation, of what
    the pool knows besides, or of the latest conversation when nothing is shared. Empty when there are none."""
    if nearest is not None and nearest.common == position:
        rest: Sequence[int] = nearest.conversation.tokens[position:].tolist()
        return rest
    if position:
        return _following(found)
    latest = conversations.latest(namespace)
    return latest.tokens.tolist() if latest is not None else ()


def _following(match: Match) -> Tokens:
    """What the pool knows behind a match: one of the ways it goes on, far enough to be shown."""
    begun = () if match.tail is None else match.tail.tokens[match.part :]
    node: Node | None = match.tail or match.nodes[-1]
    tokens = begun
    while node is not None and len(tokens) < MOST_CHARACTERS:
        node = next(iter(node.successors), None)
        tokens += node.tokens if node is not None else ()
    return tokens
