"""A rendered conversation → tokens, in which our own replies keep the tokens they were generated as.

    text       <|im_start|>user … assistant\\n │ a reply of ours │ <|im_end|>\\n<|im_start|>user …
    tokens     of the text, canonical         │ those generated │ of the text, canonical

The tokens spell the text, byte for byte, with two exceptions, both within a reply of ours. A template may put an
empty thinking block (`HIDDEN`) before a reply when it asks for one, and leave it out when it renders that reply as
history; the block stays in the tokens, since the reply was generated behind it. And a tool call keeps the spelling
that it was generated in, where the client sends back a call that is equal as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import NamedTuple

from ..replies.memory import Place, Reply, ReplyMemory, place_after
from ..text.tokenise import Tokenizer, clean_text
from .json_calls import end_of_equal_text

# All that may be in the tokens and not in the text. The first form is Qwen3's, the second GLM's and Nemotron's.
HIDDEN = re.compile(r"<think>\n\n</think>\n\n|<think></think>")
# What templates put behind the marker of the model's turn, and render differently or not at all in history.
_OPENING = re.compile(r"(?:<think>\n\n</think>\n\n|<think></think>|<think>\n?)\Z")
# How far before a reply the control token of its turn is looked for, in characters.
_HEADER = 256


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the reply to a prompt will be kept. `opening` are the last tokens of the prompt, if they belong to the
    reply rather than to what stands before it."""

    tokenizer: Tokenizer
    memory: ReplyMemory
    place: Place
    opening: tuple[int, ...] = ()

    def remember(self, output: Sequence[int], stop_string: str | None) -> None:
        """Keeps the generated tokens. `stop_string` is the one that was cut from the end of their text."""
        if not output:
            return
        ended = output[-1] in self.tokenizer.eos_ids
        tokens = (*self.opening, *(output[:-1] if ended else output))
        text = _spelled(self.tokenizer, tokens).decode("utf-8", "replace")
        if stop_string is not None and stop_string in text:
            text = text[: text.index(stop_string)]
        if tokens:
            self.memory.remember(self.place, Reply(tokens, text))


class Transcript(NamedTuple):
    """`tokens` of a text, and for each mark how many of them lie before it.

    The first `canonical` tokens are those that tokenising the whole text gives as well.
    """

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    canonical: int
    origin: Origin


class _Own(NamedTuple):
    """A reply of ours at text[start:end]. `hidden` of its tokens spell a block that the text does not have."""

    start: int
    end: int
    tokens: tuple[int, ...]
    hidden: int


def encode_transcript(
    tokenizer: Tokenizer,
    memory: ReplyMemory,
    namespace: str,
    text: str,
    marks: Sequence[int],
    arguments: AbstractSet[str] = frozenset(),
) -> Transcript:
    """The tokens of a prompt that was rendered from messages; `marks` are positions in `text`, in characters.

    `arguments` are those of all tool calls in the messages, each as `json_calls.canonical` writes it.
    """
    text = clean_text(text)
    opening = match.start() if (match := _OPENING.search(text)) else len(text)
    replies = list(_own_replies(tokenizer, memory, namespace, text, arguments))
    starts = [own.start for own in replies]
    tokens, counts = _joined(tokenizer, text, replies, [*marks, opening, *starts])
    begun = tuple(tokens[counts[len(marks)] :])
    if _spelled(tokenizer, begun) != text[opening:].encode():
        # The block does not begin with a token of its own.
        begun, opening = (), len(text)
    origin = Origin(tokenizer, memory, place_after(namespace, HIDDEN.sub("", text[:opening])), begun)
    canonical = _canonical(tokenizer, text, replies, counts[len(marks) + 1 :])
    return Transcript(
        tuple(tokens),
        tuple(counts[: len(marks)]),
        len(tokens) if canonical is None else canonical,
        origin,
    )


def _own_replies(
    tokenizer: Tokenizer, memory: ReplyMemory, namespace: str, text: str, arguments: AbstractSet[str]
) -> Iterator[_Own]:
    """The replies of ours in a text, in order. Places do not depend on hidden blocks before them."""
    hidden = [match.span() for match in HIDDEN.finditer(text)]
    end = 0
    for found in memory.find(namespace, HIDDEN.sub("", text)):
        start = _position(found.start, hidden)
        fits = (_fit(tokenizer, reply, text, start, arguments) for reply in found.replies)
        own = next(filter(None, fits), None)
        if own is not None and start >= end:
            end = own.end
            yield own


def _position(plain: int, hidden: Sequence[tuple[int, int]]) -> int:
    """Where a position in the text without its hidden blocks lies in the text; before a block, not behind it."""
    for start, end in hidden:
        if start >= plain:
            break
        plain += end - start
    return plain


def _fit(
    tokenizer: Tokenizer, reply: Reply, text: str, start: int, arguments: AbstractSet[str]
) -> _Own | None:
    """The reply at this position, if the whole of it stands there; a template may have trimmed its end."""
    expected, hidden = reply.text, 0
    block = HIDDEN.match(expected)
    if block and not text.startswith(block[0], start):
        hidden = _tokens_of(tokenizer, reply.tokens, block[0].encode())
        expected = expected[block.end() :]
        if not hidden:
            return None
    end_of_words = end_of_equal_text(expected.rstrip(), text, start, arguments)
    if end_of_words is None or not _ends_turn(tokenizer, text, end_of_words):
        return None
    own = reply.tokens[hidden:]
    fit = _same_text(tokenizer, own, expected, text, start) or _equal_calls(
        tokenizer, own, expected, end_of_words
    )
    if fit is None or not hidden + fit[0]:
        return None
    count, end = fit
    if tokenizer.adds_space and not text.startswith(tokenizer.control_texts, end):
        return None
    return _Own(start, end, reply.tokens[: hidden + count], hidden)


def _same_text(
    tokenizer: Tokenizer, tokens: Sequence[int], expected: str, text: str, start: int
) -> tuple[int, int] | None:
    """For a reply whose very words stand at `start`: how many of its tokens spell text there, and where it ends."""
    if not text.startswith(expected.rstrip(), start):
        return None
    visible = text[start : start + len(expected)].encode()
    count, length = _covered(tokenizer, tokens, visible)
    return count, start + len(visible[:length].decode())


def _equal_calls(
    tokenizer: Tokenizer, tokens: Sequence[int], expected: str, end: int
) -> tuple[int, int] | None:
    """The same for one whose calls are spelled otherwise: all of its tokens but those of white space at its end."""
    words = expected.rstrip().encode()
    count, length = _covered(tokenizer, tokens, words)
    return (count, end) if length == len(words) else None


def _tokens_of(tokenizer: Tokenizer, tokens: Sequence[int], beginning: bytes) -> int:
    """How many of the tokens spell exactly `beginning`; 0 when it ends inside one."""
    lengths = accumulate(len(tokenizer.spelling(token)) for token in tokens)
    return next((count for count, length in enumerate(lengths, 1) if length == len(beginning)), 0)


def _covered(tokenizer: Tokenizer, tokens: Sequence[int], text: bytes) -> tuple[int, int]:
    """How many leading tokens spell a beginning of `text` that ends between two characters, and its bytes."""
    best, done = (0, 0), 0
    for count, token in enumerate(tokens, 1):
        piece = tokenizer.spelling(token)
        if not piece or not text.startswith(piece, done):
            break
        done += len(piece)
        if done == len(text) or text[done] & 0xC0 != 0x80:
            best = (count, done)
    return best


def _ends_turn(tokenizer: Tokenizer, text: str, position: int) -> bool:
    """Whether a control token follows, maybe behind white space: then no word goes on behind the reply."""
    return text.startswith(tokenizer.control_texts, _after_space(text, position))


def _after_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _joined(
    tokenizer: Tokenizer, text: str, replies: Sequence[_Own], marks: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Tokens of the text between the replies and those of the replies; and how many lie before each mark.

    A mark within a reply counts as one at its start.
    """
    tokens: list[int] = []
    positions = [0] * len(marks)
    done = 0
    for own in [*replies, _Own(len(text), len(text), (), 0)]:
        inside = [i for i, mark in enumerate(marks) if done < mark <= own.start]
        part, counts = tokenizer.encode_marked(text[done : own.start], [marks[i] - done for i in inside])
        for i, count in zip(inside, counts, strict=True):
            positions[i] = len(tokens) + count
        tokens += part
        for i, mark in enumerate(marks):
            if own.start < mark <= own.end:
                positions[i] = len(tokens) + (len(own.tokens) if mark == own.end else 0)
        tokens += own.tokens
        done = own.end
    return tokens, positions


def _canonical(tokenizer: Tokenizer, text: str, replies: Sequence[_Own], starts: Sequence[int]) -> int | None:
    """How many leading tokens plain tokenisation would give too; None for all. Reply i begins at token starts[i]."""
    for own, start in zip(replies, starts, strict=True):
        agreed = 0 if own.hidden else _agreed(tokenizer, text, own)
        if agreed < len(own.tokens):
            return start + agreed
    return None


def _agreed(tokenizer: Tokenizer, text: str, own: _Own) -> int:
    """How many of a reply's tokens plain tokenisation gives; negative when it differs before the reply already.

    Control tokens part a text, so only the turn of the reply has to be tokenised.
    """
    begun = (text.rfind(c, max(0, own.start - _HEADER), own.start) for c in tokenizer.control_texts)
    turn = max(begun, default=-1)
    turn = turn if turn >= 0 else own.start
    header = tokenizer.encode(text[turn : own.start])
    plain = tokenizer.encode(text[turn : _after_space(text, own.end)])
    return _common([*header, *own.tokens], plain) - len(header)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _spelled(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.spelling, tokens))
