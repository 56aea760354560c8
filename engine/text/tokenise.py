"""Text ↔ tokens of one model."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from ..gguf.metadata import Metadata
from ..gguf.source import GgufModel
from ..gguf.tokenizer import (
    END_OF_TURN,
    HARMONY_ENDS,
    TokenType,
    Vocabulary,
    build_tokenizer,
    read_vocabulary,
    token_bytes,
)
from .stretches import Encoded, StretchEncoder


class Tokenizer:
    """Encodes and decodes for one model. Nothing but what it remembers changes, so any thread may call it.

    `bos_id` may be None. `eos_ids` are all tokens that end a turn. `add_bos` says whether raw text is to begin
    with `bos_id`; chat templates write theirs themselves. `special_tokens` maps the names that chat templates
    use (`bos_token`, `eos_token`, `unk_token`, `pad_token`) to texts. `control_texts` are the texts of all control
    tokens, `control_ids` their ids. With `adds_space` every text, and every stretch behind a control token, is
    encoded as if a space stood before it.
    """

    def __init__(self, keys: Metadata, rows: int) -> None:
        """`keys` hold `tokenizer.ggml.*` as a GGUF file has them, `rows` is the number of rows of the embedding.

        Raises ModelFileError when the vocabulary is damaged or of an unknown kind.
        """
        vocabulary = read_vocabulary(keys, rows)
        self._encoder = build_tokenizer(keys, vocabulary)
        self._bytes = _Pieces(token_bytes(vocabulary))
        self.vocab_size = len(vocabulary.texts)
        self.bos_id = vocabulary.named.get("bos")
        self.eos_ids = _end_ids(vocabulary)
        self.add_bos = vocabulary.add_bos and self.bos_id is not None
        self.special_tokens = {
            f"{short}_token": vocabulary.texts[vocabulary.named[name]]
            for short, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if name in vocabulary.named
        }
        self._controls = {
            token_id: vocabulary.texts[token_id].encode()
            for token_id in vocabulary.ids_of(TokenType.CONTROL)
            if vocabulary.texts[token_id]
        }
        self.control_ids = frozenset(self._controls)
        self.control_texts = tuple(text.decode() for text in self._controls.values())
        self._stretches = StretchEncoder(self._encoded, self.control_texts)
        self.adds_space = vocabulary.kind == "llama" and vocabulary.add_space_prefix
        self._before = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        self._after = [vocabulary.named["eos"]] if vocabulary.add_eos and "eos" in vocabulary.named else []

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """The tokens of `text`; texts of special tokens become those tokens.

        With `add_special` the model's own tokens for a raw text come before and after it. Lone surrogates, which
        UTF-8 can't hold, count as question marks.
        """
        ids = self._encoder.encode(clean_text(text), add_special_tokens=False).ids
        return [*self._before, *ids, *self._after] if add_special else list(ids)

    def encode_marked(self, text: str, marks: Sequence[int]) -> tuple[list[int], list[int]]:
        """The tokens of `text`, and for each character position in `marks` how many tokens lie wholly before it.

        What was encoded a short while ago, down to whole messages, is remembered.
        """
        encoded = self._stretches.encode(clean_text(text))
        return encoded.ids.tolist(), np.searchsorted(encoded.ends, marks, side="right").tolist()

    def _encoded(self, text: str) -> Encoded:
        encoding = self._encoder.encode(text, add_special_tokens=False)
        ends = [end for _, end in encoding.offsets]
        return Encoded(np.array(encoding.ids, np.int32), np.array(ends, np.int32))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token adds to the text: none for control tokens and for padding rows of the
        embedding, which stand for no token. Raises IndexError for a negative id."""
        if token_id < 0:
            raise IndexError(f"token {token_id}")
        return self._bytes[token_id] if token_id < self.vocab_size else b""

    def spelling(self, token_id: int) -> bytes:
        """`token_bytes`, but a control token is spelled out as a template writes it."""
        return self._controls.get(token_id) or self.token_bytes(token_id)

    def id_of(self, text: str) -> int | None:
        """The id of the token spelled like this in the file, such as `<|im_start|>`; None when there is none."""
        return self._encoder.token_to_id(text)


class _Pieces:
    """Many short byte strings in one: as objects of their own they would take ten times the memory."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._all = b"".join(pieces)
        self._ends = array("I", accumulate(map(len, pieces), initial=0))

    def __getitem__(self, index: int) -> bytes:
        return self._all[self._ends[index] : self._ends[index + 1]]


def read_tokenizer(source: GgufModel) -> Tokenizer:
    """The tokenizer of an opened file. Raises ModelFileError."""
    return Tokenizer(source.keys, source.config.vocab_size)


def _end_ids(vocabulary: Vocabulary) -> frozenset[int]:
    control = vocabulary.ids_of(TokenType.CONTROL)
    ends = END_OF_TURN
    if {vocabulary.texts[token_id] for token_id in control} >= HARMONY_ENDS:
        # There `<|end|>` ends a message, and the turn goes on.
        ends = ends - {"<|end|>"} | HARMONY_ENDS
    by_text = {token_id for token_id in control if vocabulary.texts[token_id] in ends}
    return frozenset(
        by_text | {vocabulary.named[name] for name in ("eos", "eot", "eom") if name in vocabulary.named}
    )


def clean_text(text: str) -> str:
    """The text with question marks for lone surrogates, as many characters long."""
    return text.encode("utf-8", "replace").decode()
