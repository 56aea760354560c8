"""Tokenizers built from GGUF files: the same tokens as transformers, exact bytes, clear refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentserve.engine.gguf.metadata import Metadata
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.gguf.tokenizer import TokenType
from agentserve.engine.model_errors import ModelFileError
from agentserve.engine.text.tokenise import Tokenizer, read_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_tiny_gguf
from tiny_vocabulary import byte_alphabet
from tokenizers import pre_tokenizers

CODE = "def add(left, right):\n    return left + right\n\n\tfor i in range(10):  # loop\n\t\tprint(f'{i:02d}')\r\n"
TEXTS = [
    "",
    "the quick brown fox",
    CODE,
    'fn main() { let x: Vec<u8> = vec![0x1F, 2_000]; println!("{:?}", x); }',
    "don't WE'LL I'm they'VE O'Neill's",
    "naïve façade – “quotes” … ½ ² Ⅻ",
    "日本語のテキスト 中文字符 한국어 문장",
    "🎉 👩‍👩‍👧‍👦 🇩🇪 ✌🏽",
    "a\u0301e\u0308 Å\u030a क्षि தமிழ்",
    "שלום עולם مرحبا بالعالم ١٢٣",
    "tabs\t\tand   runs    of  spaces   ",
    "\n\n\nthree lines\n \n end",
    "nul\x00 and \x7f and \ufeff and \u200b and \u3000wide\u00a0space",
    "$5.00!!! (really?) #tag @who ~/path/to/file.py <b>&amp;</b>",
    "https://example.org/a?b=c&d=%20e#f",
]
NUMBERS = ["1234567 3.14159", "a1b22c333", "price 1000, 20%", "x = 42"]
SPECIAL = [
    "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>",
    "<think>\nwhy\n</think>\n\nso",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").path
    return read_tokenizer(open_gguf(path))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_tiny_gguf(tmp_path_factory.mktemp("spm") / "tiny.gguf", tokenizer="llama").path
    return read_tokenizer(open_gguf(path))


def byte_level_keys(**changes: Any) -> Metadata:
    alphabet = byte_alphabet()
    tokens = [*alphabet, "<|end|>", alphabet[ord("a")] + alphabet[ord("b")]]
    types = np.array([1] * 256 + [3, 1], np.int32)
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": ["a b"],
        "eos_token_id": 256,
    }
    return Metadata(
        {f"tokenizer.ggml.{name}": value for name, value in (keys | changes).items() if value is not None}
    )


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(token).decode() for token in tokenizer.encode(text)]


@given(st.text())
def test_any_text_comes_back_from_its_tokens(tiny: Tokenizer, text: str) -> None:
    assert tiny.decode(tiny.encode(text)) == text


@given(st.lists(st.integers(0, 351)))
def test_decoding_joins_the_exact_bytes_of_the_tokens(tiny: Tokenizer, ids: list[int]) -> None:
    assert tiny.decode(ids) == b"".join(map(tiny.token_bytes, ids)).decode("utf-8", "replace")


@pytest.mark.parametrize("text", [*TEXTS, *NUMBERS])
def test_sentence_piece_text_comes_back_after_the_space_that_was_put_before_it(
    sentence_piece: Tokenizer, text: str
) -> None:
    assert sentence_piece.decode(sentence_piece.encode(text)) == (f" {text}" if text else "")


def test_sentence_piece_falls_back_to_bytes_and_joins_by_score(sentence_piece: Tokenizer) -> None:
    assert [sentence_piece.token_bytes(token) for token in sentence_piece.encode("日€")] == [
        b" ",
        "日".encode(),
        b"\xe2",
        b"\x82",
        b"\xac",
    ]
    assert words(sentence_piece, "the") == [" the"]


def test_special_tokens_are_found_in_text_and_stand_for_no_bytes(tiny: Tokenizer) -> None:
    ids = tiny.encode("<|im_start|>the<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tiny.token_bytes(2) == b""
    assert tiny.decode(ids) == "the"


def test_user_defined_tokens_are_whole_and_keep_their_text(tiny: Tokenizer) -> None:
    ids = tiny.encode("<think>the</think>")
    assert (ids[0], ids[-1]) == (3, 4)
    assert tiny.decode(ids) == "<think>the</think>"


def test_every_token_that_ends_a_turn_is_known(tiny: Tokenizer, sentence_piece: Tokenizer) -> None:
    assert tiny.eos_ids == {0, 2}
    assert sentence_piece.eos_ids == {2}
    assert tiny.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    eot = Tokenizer(byte_level_keys(eot_token_id=7, eom_token_id=8), 300)
    assert eot.eos_ids == {7, 8, 256}
    assert eot.token_bytes(7) == b""


def test_the_first_token_is_added_only_when_asked_for_and_when_the_model_wants_it(
    tiny: Tokenizer, sentence_piece: Tokenizer
) -> None:
    assert (tiny.add_bos, sentence_piece.add_bos) == (False, True)
    assert tiny.encode("the", add_special=True) == tiny.encode("the")
    assert sentence_piece.encode("the", add_special=True) == [1, *sentence_piece.encode("the")]
    both = Tokenizer(byte_level_keys(bos_token_id=65, add_bos_token=True, add_eos_token=True), 300)
    assert both.encode("b", add_special=True) == [65, ord("b"), 256]


def test_padding_rows_of_the_embedding_stand_for_nothing() -> None:
    tokenizer = Tokenizer(byte_level_keys(), 300)
    assert (tokenizer.vocab_size, tokenizer.token_bytes(299), tokenizer.decode([299, 97])) == (258, b"", "a")
    with pytest.raises(IndexError):
        tokenizer.token_bytes(-1)


def test_lone_surrogates_do_not_break_encoding(tiny: Tokenizer) -> None:
    assert tiny.decode(tiny.encode("a\ud800b")) == "a?b"


def test_many_threads_get_the_same_tokens(tiny: Tokenizer) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(tiny.encode, [CODE] * 64))
    assert all(result == tiny.encode(CODE) for result in results)


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        # Digits of their own, so the spaces before one stay together (GPT-2 would give one of them to the digit).
        ("smollm", "a  12", ["a", "  ", "1", "2"]),
        ("gpt-2", "a  12", ["a", " ", " 12"]),
        ("qwen2", "x1234", ["x", "1", "2", "3", "4"]),
        ("llama-bpe", "x1234", ["x", "123", "4"]),
        ("llama-bpe", "it'LL(go", ["it", "'LL", "(go"]),
        ("tekken", "HelloWorld", ["Hello", "World"]),
        ("qwen35", "a\u0301b", ["a\u0301b"]),
        ("deepseek-coder", "a\n\nb", ["a", "\n", "\n", "b"]),
    ],
)
def test_each_pre_tokenizer_cuts_words_in_its_own_way(pre: str, text: str, expected: list[str]) -> None:
    assert cut_by_merging_whole_words(pre, text, expected) == expected


def cut_by_merging_whole_words(pre: str, text: str, pieces: list[str]) -> list[str]:
    """Encodes with a vocabulary that can merge every substring of the text, so that only cuts are left."""
    alphabet = byte_alphabet()
    spelled = "".join(alphabet[byte] for byte in text.encode())
    longest = sorted(
        {spelled[i:j] for i in range(len(spelled)) for j in range(i + 2, len(spelled) + 1)}, key=len
    )
    merges = [f"{part[:cut]} {part[cut:]}" for part in longest for cut in range(1, len(part))]
    keys = byte_level_keys(pre=pre, tokens=[*alphabet, "<|end|>", *longest], merges=merges, token_type=None)
    assert "".join(pieces) == text
    return words(Tokenizer(keys, 10_000), text)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"model": "t5"}, "unsupported_model", "the tokenizer kind t5 is not supported (gpt2 and llama are)"),
        (
            {"model": None},
            "unsupported_model",
            "the tokenizer kind none is not supported (gpt2 and llama are)",
        ),
        ({"pre": "kimi-k2"}, "unsupported_model", "the pre-tokenizer kimi-k2 is not supported"),
        ({"tokens": []}, "corrupt_model", "the file has 0 tokens for 258 rows of embedding"),
        ({"tokens": ["a"] * 259}, "corrupt_model", "the file has 259 tokens for 258 rows of embedding"),
        ({"token_type": np.ones(3, np.int32)}, "corrupt_model", "the file has 258 tokens, but 3 token types"),
        ({"merges": ["a nothing"]}, "corrupt_model", "the merge 'a nothing' does not fit the tokens"),
        ({"merges": ["ab"]}, "corrupt_model", "the merge 'ab' does not fit the tokens"),
        (
            {"eos_token_id": 258},
            "corrupt_model",
            "tokenizer.ggml.eos_token_id is 258, but there are 258 tokens",
        ),
        ({"add_bos_token": 1}, "corrupt_model", "tokenizer.ggml.add_bos_token is not true or false"),
        (
            {"model": "llama", "merges": None},
            "corrupt_model",
            "tokenizer.ggml.scores should hold one score for each token",
        ),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer(byte_level_keys(**changes), 258)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_an_end_of_turn_token_that_a_converter_left_user_defined_is_control() -> None:
    types = np.array([1] * 256 + [TokenType.USER_DEFINED, 1], np.int32)
    tokenizer = Tokenizer(byte_level_keys(token_type=types, eos_token_id=None), 258)
    assert tokenizer.eos_ids == {256}
    assert tokenizer.token_bytes(256) == b""


# ---- against transformers, which needs torch to read GGUF files


def transformers_tokenizer(path: Path) -> Any:
    pytest.importorskip("torch")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def assert_same_tokens(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    for text in texts:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids, text
        assert ours.encode(text, add_special=True) == theirs.encode(text), text
        # transformers drops the space that SentencePiece put before a text; ours are the exact bytes.
        assert ours.decode(ids).lstrip(" ") == theirs.decode(ids, skip_special_tokens=True).lstrip(" "), text


@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "pre"),
    [
        ("llama", "llama-bpe"),
        ("mistral", "tekken"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen35"),
        ("llama", "gpt-2"),
    ],
)
def test_byte_level_tokens_are_those_of_transformers(tmp_path: Path, family: str, pre: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", family, pre=pre).path
    assert_same_tokens(
        read_tokenizer(open_gguf(path)), transformers_tokenizer(path), [*TEXTS, *NUMBERS, *SPECIAL]
    )


@pytest.mark.torch
def test_sentence_piece_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tokenizer="llama").path
    # Text that begins with white space is left out: transformers then puts no space before it, llama.cpp does.
    texts = [text for text in [*TEXTS, *NUMBERS] if not text[:1].isspace()]
    assert_same_tokens(read_tokenizer(open_gguf(path)), transformers_tokenizer(path), texts)


@pytest.mark.torch
@pytest.mark.model
def test_smollm2_tokens_are_those_of_transformers(smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "smollm2.gguf"
    path.symlink_to(smollm2)
    theirs = transformers_tokenizer(path)
    # transformers doesn't know the pre-tokenizer `smollm` of GGUF files and falls back to GPT-2's, which gives a space
    # before a digit to the digit. This is the one in the model's published tokenizer.json.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert_same_tokens(read_tokenizer(open_gguf(path)), theirs, [*TEXTS, *NUMBERS, *SPECIAL, "a  12"])


@pytest.mark.model
def test_smollm2_text_comes_back_from_its_tokens(smollm2: Path) -> None:
    tokenizer = read_tokenizer(open_gguf(smollm2))
    for text in [*TEXTS, *NUMBERS, "a  12"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == {0, 2}
    assert (tokenizer.add_bos, tokenizer.bos_id, tokenizer.vocab_size) == (False, 1, 49_152)
    assert words(tokenizer, "a  12") == ["a", "  ", "1", "2"]
