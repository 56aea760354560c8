"""WordPiece against transformers' own tokenizer, and the spelling of tokens in GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentserve.engine.encoders.source import open_encoder
from agentserve.engine.encoders.tokenizer import (
    WordPieceTokenizer,
    as_in_gguf,
    as_in_vocab_txt,
    is_uncased,
    read_word_pieces,
)
from agentserve.engine.model_errors import ModelFileError
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoders import VOCABULARY, make_tiny_encoder

TINY = WordPieceTokenizer(VOCABULARY)
IDS = {text: token_id for token_id, text in enumerate(VOCABULARY)}


def spelled(text: str) -> list[str]:
    return [VOCABULARY[token] for token in TINY.encode(text)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("The quick, UNABLE fox", "the quick , un ##able fox"),
        ("Café  東京\tdogs\x00!", "cafe 東 京 dog ##s !"),
        ("dog[MASK]s", "dog [MASK] [UNK]"),
        ("zebra", "[UNK]"),
        ("a" * 101, "[UNK]"),
        ("", ""),
        ("\udcff", "[UNK]"),
    ],
)
def test_words_are_cut_into_pieces(text: str, pieces: str) -> None:
    assert spelled(text) == ["[CLS]", *pieces.split(), "[SEP]"]


@pytest.mark.torch
@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.sampled_from([*VOCABULARY, "Éa", "ǅ", "\u3000", "\u200b", "ｗ", "don't"]) | st.text(max_size=5)
    )
)
def test_it_agrees_with_transformers(words: list[str]) -> None:
    pytest.importorskip("transformers")
    from transformers import BertTokenizer

    theirs: Any = BertTokenizer(vocab=IDS, do_lower_case=True)
    text = " ".join(words).encode("utf-8", "replace").decode()
    assert list(TINY.encode(text)) == theirs(text)["input_ids"]


def test_a_cased_vocabulary_keeps_capitals() -> None:
    cased = WordPieceTokenizer([*VOCABULARY, "Fox"])
    assert cased.encode("Fox fox")[1:-1] == (len(VOCABULARY), IDS["fox"])
    assert not is_uncased([*VOCABULARY, "Fox"])
    assert is_uncased(VOCABULARY)


def test_tokens_are_framed_once() -> None:
    framed = TINY.encode("the dog")
    assert TINY.framed(framed) == framed
    assert TINY.framed(framed[1:-1]) == framed
    assert TINY.framed([]) == (IDS["[CLS]"], IDS["[SEP]"])


def test_a_cut_text_still_ends_as_one() -> None:
    tokens = TINY.encode("the quick brown fox")
    assert TINY.cut(tokens, len(tokens)) == tokens
    assert TINY.cut(tokens, 4) == (*tokens[:3], IDS["[SEP]"])


@pytest.mark.parametrize("text", ["word", "##piece", "##", "[CLS]", "[unused7]", "[", "]", "##]", "▁"])
def test_the_spelling_of_gguf_can_be_undone(text: str) -> None:
    assert as_in_vocab_txt(as_in_gguf(text)) == text


def test_the_file_has_the_vocabulary(tmp_path: Path) -> None:
    read = read_word_pieces(open_encoder(make_tiny_encoder().write(tmp_path / "tiny.gguf")))
    assert read.encode("Hello worlds, unable") == TINY.encode("Hello worlds, unable")


def test_a_vocabulary_without_its_special_tokens_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"no token \[SEP\]"):
        WordPieceTokenizer([text for text in VOCABULARY if text != "[SEP]"])
