"""WordPiece (Schuster and Nakajima 2012) from what a GGUF file says about its vocabulary.

llama.cpp's converter rewrites BERT's tokens so that they look like SentencePiece's, and here they are put back:

    in vocab.txt     word      ##piece    [CLS]
    in the file      ▁word     piece      [CLS]

The format does not say whether text is to be lower-cased. A vocabulary without a capital letter says it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from ..gguf.metadata import Metadata
from ..gguf.tokenizer import SPACE
from ..model_errors import corrupt, unsupported
from ..text.tokenise import clean_text
from .source import EncoderModel

KIND = "bert"
CONTINUES = "##"
CLS, SEP, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
SPECIAL = (CLS, SEP, UNKNOWN, "[PAD]", "[MASK]")
# A longer word is unknown (transformers' BertTokenizer).
_LONGEST_WORD = 100


class WordPieceTokenizer:
    """Text to the tokens of one encoder. Immutable after construction, so any thread may call it."""

    def __init__(self, texts: Sequence[str]) -> None:
        """`texts` are the tokens as `vocab.txt` spells them, by id. Raises ModelFileError when one is missing."""
        ids = {text: token_id for token_id, text in enumerate(texts)}
        for text in (CLS, SEP, UNKNOWN):
            if text not in ids:
                raise corrupt(f"the vocabulary has no token {text}")
        self.vocab_size, self._texts = len(texts), tuple(texts)
        self._first, self._last = ids[CLS], ids[SEP]
        self._encoder = Tokenizer(
            models.WordPiece(vocab=ids, unk_token=UNKNOWN, max_input_chars_per_word=_LONGEST_WORD)
        )
        self._encoder.normalizer = normalizers.BertNormalizer(lowercase=is_uncased(texts))
        self._encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = [AddedToken(text, normalized=False, special=True) for text in SPECIAL if text in ids]
        self._encoder.add_special_tokens(special)

    def encode(self, text: str, add_special: bool = True) -> tuple[int, ...]:
        """The tokens of `text`, with `add_special` between [CLS] and [SEP]."""
        tokens = self._encoder.encode(clean_text(text), add_special_tokens=False).ids
        return self.framed(tokens) if add_special else tuple(tokens)

    def pieces(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """How `vocab.txt` spells each of the tokens, which are of the vocabulary."""
        return tuple(self._texts[token] for token in tokens)

    def framed(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens between [CLS] and [SEP], unless they are framed already."""
        if len(tokens) > 1 and (tokens[0], tokens[-1]) == (self._first, self._last):
            return tuple(tokens)
        return (self._first, *tokens, self._last)

    def cut(self, tokens: tuple[int, ...], length: int) -> tuple[int, ...]:
        """The first tokens, `length` of them with [SEP], which stays the last."""
        return tokens if len(tokens) <= length else (*tokens[: length - 1], self._last)


def read_word_pieces(source: EncoderModel) -> WordPieceTokenizer:
    """The tokenizer of an opened file. Raises ModelFileError."""
    rows = source.config.vocab_size
    texts = _texts(source.keys)
    if not 0 < len(texts) <= rows:
        raise corrupt(f"the file has {len(texts):,} tokens for {rows:,} rows of embedding")
    return WordPieceTokenizer([as_in_vocab_txt(text) for text in texts])


def is_uncased(texts: Sequence[str]) -> bool:
    """Whether the vocabulary was made for lower-cased text; special tokens are in capitals everywhere."""
    return not any(text != text.lower() for text in texts if not _is_special(text))


def as_in_gguf(text: str) -> str:
    """A token of `vocab.txt` as a GGUF file spells it."""
    if _is_special(text):
        return text
    return text[len(CONTINUES) :] if text.startswith(CONTINUES) else SPACE + text


def as_in_vocab_txt(text: str) -> str:
    """A token of a GGUF file as `vocab.txt` spells it."""
    if _is_special(text):
        return text
    return text[len(SPACE) :] if text.startswith(SPACE) else CONTINUES + text


def _is_special(text: str) -> bool:
    return len(text) > 2 and text.startswith("[") and text.endswith("]")


def _texts(keys: Metadata) -> list[str]:
    kind = keys.text("tokenizer.ggml.model") or "none"
    if kind != KIND:
        raise unsupported(f"the tokenizer kind {kind} is not supported for an encoder ({KIND} is)")
    return keys.texts("tokenizer.ggml.tokens")
