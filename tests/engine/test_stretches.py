"""Tokens of remembered stretches are those of the whole text, at the same places."""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.runners.reference_model import byte_tokenizer
from agentserve.engine.text.stretches import Encoded, StretchEncoder
from agentserve.engine.text.tokenise import Tokenizer, read_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_tiny_gguf

CONTROLS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<|im_", "<think>"]
PIECES = [
    *CONTROLS,
    "user",
    "\n",
    " ",
    "  the fox",
    "é",
    "e\u0301",
    "\u0301",
    "日本",
    "🙂",
    "1234",
    "<",
    "|>",
    "'s",
]
PROMPTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@pytest.fixture(scope="module", params=["bytes", "gpt2", "llama"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "bytes":
        return byte_tokenizer()
    file = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tokenizer=request.param)
    return read_tokenizer(open_gguf(file.path))


def assert_same(tokenizer: Tokenizer, text: str) -> None:
    whole = tokenizer._encoder.encode(text, add_special_tokens=False)
    ends = [end for _, end in whole.offsets]
    marks = list(range(len(text) + 1))
    for _ in range(2):
        tokens, counts = tokenizer.encode_marked(text, marks)
        assert tokens == whole.ids
        assert counts == [bisect_right(ends, mark) for mark in marks]


@given(text=PROMPTS)
@settings(max_examples=200, deadline=None)
def test_stretches_give_the_tokens_of_the_whole(tokenizer: Tokenizer, text: str) -> None:
    assert_same(tokenizer, text)


@pytest.mark.model
@given(text=PROMPTS)
@settings(max_examples=200, deadline=None)
def test_so_they_do_for_smollm2(smollm: Tokenizer, text: str) -> None:
    assert_same(smollm, text)


@pytest.fixture(scope="module")
def smollm(smollm2: Path) -> Tokenizer:
    return read_tokenizer(open_gguf(smollm2))


class Letters:
    """One token a letter; notes what it was asked to encode."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> Encoded:
        self.asked.append(text)
        return Encoded(
            np.array([ord(letter) for letter in text], np.int32), np.arange(1, len(text) + 1, dtype=np.int32)
        )


def test_only_what_is_new_is_encoded() -> None:
    letters = Letters()
    encoder = StretchEncoder(letters, ["<a>", "<b>"])
    encoder.encode("<a>system<b><a>one<b>")
    assert letters.asked == ["<a>system", "<b>", "<a>one"]
    letters.asked.clear()
    text = "<a>system<b><a>two<b>"
    assert encoder.encode(text).ids.tolist() == [ord(letter) for letter in text]
    assert encoder.encode(text).ends.tolist() == list(range(1, len(text) + 1))
    assert letters.asked == ["<a>two"]


def test_the_oldest_stretches_are_forgotten() -> None:
    letters = Letters()
    encoder = StretchEncoder(letters, ["<a>"])
    long = 1 << 20
    for letter in "pqrst":
        encoder.encode(letter * long)
    encoder.encode("t" * long)
    encoder.encode("p" * long)
    assert [text[0] for text in letters.asked] == list("pqrstp")


def test_threads_get_the_same_tokens(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nthe quick brown fox<|im_end|>\n" * 20
    expected = tokenizer.encode(text)
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(tokenizer.encode_marked(text, [])[0])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8
