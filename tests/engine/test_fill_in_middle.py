"""Prompts that ask for what stands between two texts."""

from __future__ import annotations

import numpy as np
import pytest
from agentserve.engine.gguf.header import MetadataValue
from agentserve.engine.gguf.metadata import Metadata
from agentserve.engine.gguf.tokenizer import TokenType, byte_alphabet
from agentserve.engine.prompts.fill_in_middle import KNOWN, GapMarks
from agentserve.engine.prompts.prompting import Prompter, PromptError
from agentserve.engine.protocol import GenerateRequest, SamplingParams
from agentserve.engine.text.tokenise import Tokenizer


def prompter(*marks: str, adds_bos: bool = False) -> Prompter:
    texts = [*byte_alphabet(), "<bos>", *marks]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * (1 + len(marks))
    keys: dict[str, MetadataValue] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.add_bos_token": adds_bos,
    }
    tokenizer = Tokenizer(Metadata(keys), len(texts))
    return Prompter(tokenizer, None, SamplingParams(), 100)


def spelled(made: Prompter, request: GenerateRequest) -> str:
    return "".join(made.tokenizer.spelling(token).decode() for token in made.prompt(request).tokens)


@pytest.mark.parametrize("marks", KNOWN)
def test_the_reply_begins_after_prefix_and_suffix_in_the_marks_of_the_family(marks: GapMarks) -> None:
    made = prompter(*marks)
    expected = f"{marks.prefix}def f(){marks.suffix}return x{marks.middle}"
    assert spelled(made, GenerateRequest("r", prompt="def f()", suffix="return x")) == expected
    tokens = tuple(made.tokenizer.encode("def f()"))
    assert spelled(made, GenerateRequest("r", prompt=tokens, suffix="return x")) == expected


def test_a_gap_at_the_beginning_has_no_prefix() -> None:
    marks = KNOWN[0]
    found = spelled(prompter(*marks), GenerateRequest("r", prompt="", suffix="z"))
    assert found == f"{marks.prefix}{marks.suffix}z{marks.middle}"


def test_a_model_that_wants_a_first_token_gets_it_once() -> None:
    found = spelled(prompter(*KNOWN[1], adds_bos=True), GenerateRequest("r", prompt="a", suffix="b"))
    assert found == "<bos><fim_prefix>a<fim_suffix>b<fim_middle>"


def test_marks_of_two_families_are_no_notation() -> None:
    made = prompter(KNOWN[0].prefix, KNOWN[1].suffix, KNOWN[0].middle)
    with pytest.raises(PromptError) as caught:
        made.prompt(GenerateRequest("r", prompt="a", suffix="b"))
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "unsupported_parameter",
        "suffix",
    )


def test_a_token_that_is_none_is_refused_in_the_prefix_too() -> None:
    with pytest.raises(PromptError, match="no token 9999"):
        prompter(*KNOWN[0]).prompt(GenerateRequest("r", prompt=(9999,), suffix="b"))
