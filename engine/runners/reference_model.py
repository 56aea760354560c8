"""The built-in model that needs no files: tokenizer, template and runner of the device `mock`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..gguf.metadata import Metadata
from ..gguf.tokenizer import TokenType, byte_alphabet
from ..prompts.templates import ChatTemplate
from ..protocol import LoadModel, SamplingParams
from ..text.tokenise import Tokenizer
from .backend import Backend
from .reference import ReferenceRunner

CONTEXT_LENGTH = 16_384
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def open_reference(spec: LoadModel) -> Backend:
    """The reference model as a backend; the same for every caller but for the time that a step takes."""
    tokenizer = byte_tokenizer()
    end_of_turn = tokenizer.id_of("<|im_end|>")
    assert end_of_turn is not None
    runner = ReferenceRunner(tokenizer.vocab_size, _likely(tokenizer), end_of_turn, spec.reference_step_s)
    return Backend(
        runner=runner,
        tokenizer=tokenizer,
        template=ChatTemplate(_TEMPLATE, tokenizer.special_tokens),
        defaults=SamplingParams(),
        architecture="reference",
        device="mock",
        context_length=CONTEXT_LENGTH,
        parameters=runner.parameters,
        weight_bytes=runner.parameters * 4,
        fingerprint="reference-1",
    )


def byte_tokenizer(control: Sequence[str] = _CONTROL) -> Tokenizer:
    """One token a byte, and control tokens behind them, ChatML's or others with `<|im_end|>` among them."""
    texts = [*byte_alphabet(), *control]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(control)
    keys = Metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.eos_token_id": texts.index("<|im_end|>"),
        }
    )
    return Tokenizer(keys, len(texts))


def _likely(tokenizer: Tokenizer) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens that its text is made of: letters, and now and then something that is more than one byte."""
    common = "abcdefghijklmnopqrstuvwxyz  \n.,"
    return np.array(sorted({token for letter in common for token in tokenizer.encode(letter)}), np.int64)
