"""Prompts that ask a code model for what stands between two texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..text.tokenise import Tokenizer


class GapMarks(NamedTuple):
    """The control tokens before the text that precedes the gap, before the text behind it, and before the reply."""

    prefix: str
    suffix: str
    middle: str


# As each family was trained: prefix, suffix, then the middle ("PSM" of Bavarian et al., arXiv 2207.14255).
KNOWN = (
    GapMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    GapMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    GapMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    GapMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)


def gap_tokens(tokenizer: Tokenizer, before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...] | None:
    """The prompt whose reply stands between two texts of these tokens; None when the vocabulary has no marks for it."""
    for marks in KNOWN:
        prefix, suffix, middle = map(tokenizer.id_of, marks)
        if prefix is not None and suffix is not None and middle is not None:
            first = (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()
            return (*first, prefix, *before, suffix, *behind, middle)
    return None
