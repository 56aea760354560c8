"""Tiny vocabularies, learned from a fixed text, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from gguf import GGUFWriter
from gguf.constants import TokenType

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>", "</think>"]
VOCAB_SIZE = 352
_TRAINING_TEXT = (
    "the quick brown fox jumps over the lazy dog and then the other dog runs with the fox in the rain; "
    "def add(left, right):\n    return left + right\n\nfor index in range(10):\n    print(add(index, 1))\n"
    "there is no other way than the one that they have taken, and that is that. "
)
_SPACE = "▁"


def write_byte_level(writer: GGUFWriter, size: int, pre: str) -> None:
    """Byte-level BPE: SPECIAL as control tokens with ids 0 … 2, USER_DEFINED, 256 bytes, merges."""
    tokens, merges = byte_level_vocabulary(size)
    types = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.USER_DEFINED] * len(USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types + [TokenType.NORMAL] * (size - len(types)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)


def write_sentence_piece(writer: GGUFWriter, size: int) -> None:
    """SentencePiece BPE: <unk>, <s>, </s>, 256 bytes, pieces with falling scores, no merges."""
    tokens, scores, types = sentence_piece_vocabulary(size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)


def byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = {byte: 0x100 + index for index, byte in enumerate(b for b in range(256) if b not in plain)}
    return [chr(shifted.get(byte, byte)) for byte in range(256)]


def byte_level_vocabulary(size: int = VOCAB_SIZE) -> tuple[list[str], list[str]]:
    """(tokens [size], merges)."""
    alphabet = byte_alphabet()
    spelled = "".join(alphabet[byte] for byte in _TRAINING_TEXT.encode())
    known = [*SPECIAL, *USER_DEFINED, *alphabet]
    merges = _learned(spelled, alphabet[0x20], size - len(known))
    return [*known, *(left + right for left, right in merges)], [" ".join(merge) for merge in merges]


def sentence_piece_vocabulary(size: int = VOCAB_SIZE) -> tuple[list[str], list[float], list[TokenType]]:
    """(tokens [size], scores, types). Single characters come last, with the lowest scores."""
    text = _TRAINING_TEXT.replace(" ", _SPACE)
    letters = sorted(set(text) | set("éß日本"))
    fixed = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [left + right for left, right in _learned(text, _SPACE, size - len(fixed) - len(letters))]
    scores = [0.0] * len(fixed) + [-float(rank) for rank in range(len(pieces) + len(letters))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    return [*fixed, *pieces, *letters], scores, types + [TokenType.NORMAL] * (len(pieces) + len(letters))


def _learned(text: str, space: str, count: int) -> list[tuple[str, str]]:
    """The first `count` merges of byte-pair encoding; equal counts go by the alphabet."""
    words = Counter(tuple(space + word if index else word) for index, word in enumerate(text.split(space)))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        joined: Counter[tuple[str, ...]] = Counter()
        for word, times in words.items():
            joined[_merged(word, *best)] += times
        words = joined
    return merges


def _merged(word: tuple[str, ...], left: str, right: str) -> tuple[str, ...]:
    merged: list[str] = []
    for part in word:
        if part == right and merged and merged[-1] == left:
            merged[-1] = left + right
        else:
            merged.append(part)
    return tuple(merged)
