"""Learns the replies of earlier runs from the tokens of conversations that lie on disk.

Tokens tell by themselves where a reply was: it is where they differ from what tokenising their text gives. Each
stretch between two control tokens that does is kept, as a whole, under the text before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from ..capsules.disk import CapsuleDisk, StoredBlock
from ..prompts.transcripts import HIDDEN
from ..text.tokenise import Tokenizer
from .memory import Reply, ReplyMemory, place_after


def recall_replies(tokenizer: Tokenizer, memory: ReplyMemory, namespace: str, tokens: Sequence[int]) -> None:
    """Remembers what is not canonical in the tokens of a conversation.

    Nothing is learned from a tokenizer that adds spaces: its tokens do not spell the text that they came from.
    """
    if tokenizer.adds_space:
        return
    before = ""
    for stretch, control in _stretches(tokenizer, tokens):
        text = b"".join(map(tokenizer.spelling, stretch)).decode("utf-8", "replace")
        if stretch != tuple(tokenizer.encode(text)):
            memory.remember(place_after(namespace, HIDDEN.sub("", before)), Reply(stretch, text))
        before += text + control


def _stretches(tokenizer: Tokenizer, tokens: Sequence[int]) -> Iterator[tuple[tuple[int, ...], str]]:
    """The tokens between control tokens, each with the text of the control token behind it, if there is one."""
    begin = 0
    for index, token in enumerate(tokens):
        if not tokenizer.token_bytes(token) and (control := tokenizer.spelling(token)):
            yield tuple(tokens[begin:index]), control.decode()
            begin = index + 1
    yield tuple(tokens[begin:]), ""


def recent_conversations(disk: CapsuleDisk, most: int = 8) -> list[tuple[str, tuple[int, ...]]]:
    """Namespace and tokens of the conversations that were used last and lie on disk from their first token on."""
    blocks = {block.key: block for file in disk.files() for block in file.blocks}
    inner = {block.parent for block in blocks.values()}
    ends = (block for block in reversed(blocks.values()) if block.key not in inner)
    chains = (_chain(blocks, end) for end in ends)
    whole = ((chain[0].file.capsule.namespace, _tokens(chain)) for chain in chains if _is_first(chain[0]))
    return list(islice(whole, most))


def _chain(blocks: Mapping[bytes, StoredBlock], end: StoredBlock) -> list[StoredBlock]:
    """The blocks up to this one, as far back as they are on disk."""
    chain = [end]
    while (before := blocks.get(chain[-1].parent)) is not None:
        chain.append(before)
    return chain[::-1]


def _is_first(block: StoredBlock) -> bool:
    return block.number == 0 and block.file.capsule.first == 0


def _tokens(chain: Iterable[StoredBlock]) -> tuple[int, ...]:
    return tuple(token for block in chain for token in block.tokens)
