"""Builds a `tokenizers.Tokenizer` from what a GGUF file says about its vocabulary.

Two kinds exist in the supported families: byte-level BPE (`gpt2`: tokens are bytes spelled in GPT-2's alphabet,
merges are listed) and SentencePiece BPE (`llama`: tokens are text with ▁ for a space, merges follow from the
scores, bytes that no token covers are `<0x00>` … `<0xFF>`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from ..model_errors import corrupt, unsupported
from .metadata import Metadata
from .pre_tokenizers import pre_tokenizer

SPACE = "▁"
# Tokens that end a turn by their text, since files name one end at most (compare llama.cpp's list).
END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<EOT>",
        "[EOT]",
        "</s>",
    }
)
# What ends a turn in the vocabularies of gpt-oss, which have both.
HARMONY_ENDS = frozenset({"<|return|>", "<|call|>"})
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as llama.cpp numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file in the order of their ids.

    `kind` is `gpt2` or `llama`. `named` are the ids that the file gives a name to: bos, eos, eot, eom, unknown,
    padding. `add_space_prefix` matters for `llama` alone.
    """

    kind: str
    pre: str
    texts: list[str]
    types: list[int]
    named: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    def ids_of(self, kind: TokenType) -> list[int]:
        return [token_id for token_id, value in enumerate(self.types) if value == kind]


def read_vocabulary(keys: Metadata, rows: int) -> Vocabulary:
    """Reads and checks the vocabulary; `rows` is how many tokens the embedding has.

    Raises ModelFileError for an unknown kind or pre-tokenizer, and for lists or ids that do not fit together.
    """
    kind = keys.text("tokenizer.ggml.model") or "none"
    if kind not in ("gpt2", "llama"):
        raise unsupported(f"the tokenizer kind {kind} is not supported (gpt2 and llama are)")
    texts = keys.texts("tokenizer.ggml.tokens")
    if not 0 < len(texts) <= rows:
        raise corrupt(f"the file has {len(texts):,} tokens for {rows:,} rows of embedding")
    pre = keys.text("tokenizer.ggml.pre") or "default"
    named = _named_ids(keys, len(texts))
    return Vocabulary(
        kind=kind,
        pre=pre,
        texts=texts,
        types=_types(keys, texts, named),
        named=named,
        add_bos=keys.flag(
            "tokenizer.ggml.add_bos_token", pre_tokenizer(pre).add_bos if kind == "gpt2" else True
        ),
        add_eos=keys.flag("tokenizer.ggml.add_eos_token", False),
        add_space_prefix=keys.flag("tokenizer.ggml.add_space_prefix", True),
    )


def build_tokenizer(keys: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer that encodes text the way the model was trained; it adds no special tokens by itself."""
    build = _byte_level if vocabulary.kind == "gpt2" else _sentence_piece
    tokenizer = build(keys, vocabulary)
    texts = vocabulary.texts
    control = [texts[i] for i in vocabulary.ids_of(TokenType.CONTROL)]
    user_defined = [texts[i] for i in vocabulary.ids_of(TokenType.USER_DEFINED)]
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in control if text]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in user_defined if text])
    return tokenizer


def token_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes that each token stands for in the text, by id. Control and unknown tokens stand for none."""
    alphabet = byte_alphabet() if vocabulary.kind == "gpt2" else None
    return [
        _bytes_of(text, kind, alphabet) for text, kind in zip(vocabulary.texts, vocabulary.types, strict=True)
    ]


def byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100 upwards
    in order (GPT-2, `encoder.py`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _named_ids(keys: Metadata, count: int) -> dict[str, int]:
    named = {}
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = keys.integer(key)
        if token_id is None:
            continue
        if not 0 <= token_id < count:
            raise corrupt(f"{key} is {token_id}, but there are {count:,} tokens")
        named[name] = token_id
    return named


def _types(keys: Metadata, texts: Sequence[str], named: Mapping[str, int]) -> list[int]:
    """The types by id; a token that begins or ends text is control, whatever an old converter wrote."""
    stored = keys.numbers("tokenizer.ggml.token_type")
    types = (
        [int(TokenType.NORMAL)] * len(texts) if stored is None else [int(value) for value in stored.tolist()]
    )
    if len(types) != len(texts):
        raise corrupt(f"the file has {len(texts):,} tokens, but {len(types):,} token types")
    for name in ("bos", "eos", "eot", "eom"):
        if name in named:
            types[named[name]] = TokenType.CONTROL
    for token_id, text in enumerate(texts):
        if text in END_OF_TURN and types[token_id] == TokenType.USER_DEFINED:
            types[token_id] = TokenType.CONTROL
    return types


def _byte_level(keys: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    kind = pre_tokenizer(vocabulary.pre)
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    merges = _listed_merges(keys.texts("tokenizer.ggml.merges"), ids)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=kind.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spell])
    return tokenizer


def _listed_merges(lines: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for line in lines:
        space = line.find(" ", 1)  # from 1: the left part may itself be a space
        left, right = line[:space], line[space + 1 :]
        if space < 0 or not right or not {left, right, left + right} <= ids.keys():
            raise corrupt(f"the merge {line!r} does not fit the tokens")
        merges.append((left, right))
    return merges


def _sentence_piece(keys: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    lines = keys.texts("tokenizer.ggml.merges")
    merges = _listed_merges(lines, ids) if lines else _implied_merges(keys, vocabulary.texts, ids)
    unknown = vocabulary.texts[vocabulary.named["unknown"]] if "unknown" in vocabulary.named else None
    model = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", SPACE)
    # Prepend works on each stretch of text between special tokens, as llama.cpp does.
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        if vocabulary.add_space_prefix
        else replace
    )
    return tokenizer


def _implied_merges(keys: Metadata, texts: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose token has the best score, so every way to cut a token in two is a
    merge and the score is its rank. Equal scores go by length, as in transformers' `generate_merges`."""
    scores = keys.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(texts):
        raise corrupt("tokenizer.ggml.scores should hold one score for each token")
    found = []
    for text, score in zip(texts, scores.tolist(), strict=True):
        cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
        found += [
            (-score, -len(left), -len(right), left, right)
            for left, right in cuts
            if left in ids and right in ids
        ]
    found.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in found]


def _bytes_of(text: str, kind: int, alphabet: Mapping[str, int] | None) -> bytes:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
        return b""
    if kind == TokenType.USER_DEFINED:
        return text.encode()
    if alphabet is not None:
        try:
            return bytes([alphabet[character] for character in text])
        except KeyError:  # not spelled in the alphabet, so it is plain text
            return text.encode()
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()
