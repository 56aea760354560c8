"""Tokenizers with merges, chat templates of several kinds, and a reference model whose text is not canonical.

The templates are short ones of our own that do what those of well-known models do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase

import numpy as np
from agentserve.engine.gguf.metadata import Metadata
from agentserve.engine.gguf.tokenizer import TokenType
from agentserve.engine.prompts.templates import ChatTemplate
from agentserve.engine.protocol import SamplingParams
from agentserve.engine.runners.backend import Backend
from agentserve.engine.runners.reference import ReferenceRunner
from agentserve.engine.text.tokenise import Tokenizer
from tiny_vocabulary import USER_DEFINED, byte_alphabet, byte_level_vocabulary


@dataclass(frozen=True)
class TemplateKind:
    """A template, its control tokens, and which of them ends a turn."""

    source: str
    controls: tuple[str, ...]
    end_of_turn: str


_CALLS = (
    "{% for call in m.tool_calls or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' ~ call.function.name ~ \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}"
    "{% endfor %}"
)
CHATML_CONTROLS = ("<|im_start|>", "<|im_end|>")

CHATML = TemplateKind(
    "{% if tools %}{{ '<|im_start|>system\n' ~ (tools | tojson) ~ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}"
    + _CALLS
    + "{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    CHATML_CONTROLS,
    "<|im_end|>",
)
# Trims what the assistant said, as many templates do.
TRIMMING = TemplateKind(
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ (m.content | trim) ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    CHATML_CONTROLS,
    "<|im_end|>",
)
# Like Qwen3's: reasoning of earlier turns is dropped, and a turn without thinking begins with an empty block.
THINKING = TemplateKind(
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}{{ '<|im_start|>system\n' ~ (tools | tojson) ~ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' ~ m.content ~ '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}"
    "{% set reasoning = m.reasoning_content or '' %}{% set answer = m.content %}"
    "{% if '</think>' in answer %}"
    "{% set reasoning = (answer.split('</think>') | first).split('<think>') | last %}"
    "{% set answer = (answer.split('</think>') | last).lstrip('\n') %}"
    "{% endif %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.last and reasoning.strip() %}"
    "{{ '<think>\n' ~ reasoning.strip('\n') ~ '\n</think>\n\n' }}"
    "{% endif %}"
    "{{ answer }}" + _CALLS + "{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}",
    CHATML_CONTROLS,
    "<|im_end|>",
)
# Shows the empty block of the turns that follow the last user message.
SHOWING = TemplateKind(
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}",
    CHATML_CONTROLS,
    "<|im_end|>",
)
LLAMA3 = TemplateKind(
    "{{ '<|begin_of_text|>' }}"
    "{% for m in messages %}"
    "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ (m.content | trim) }}"
    + _CALLS
    + "{{ '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|eot_id|>",
)
# Like Mistral's: the system text stands before the last user message, and so moves with every turn.
MISTRAL = TemplateKind(
    "{% set system = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' %}"
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{{ '<s>' }}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}"
    "{{ '[INST] ' ~ (system if loop.index0 == ns.last else '') ~ m.content ~ ' [/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' ~ m.content ~ ' [/TOOL_RESULTS]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}" + _CALLS + "{{ '</s>' }}{% endif %}"
    "{% endfor %}",
    ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    "</s>",
)
KINDS = {
    "chatml": CHATML,
    "trimming": TRIMMING,
    "thinking": THINKING,
    "llama 3": LLAMA3,
    "mistral": MISTRAL,
}


@cache
def merging_tokenizer(kind: TemplateKind) -> Tokenizer:
    """Byte-level BPE with about a hundred merges, `<think>` and `</think>`, and the kind's control tokens."""
    tokens, merges = byte_level_vocabulary()
    plain = [*tokens[3 + len(USER_DEFINED) :], *(letter * 2 for letter in ascii_lowercase)]
    merges = [*merges, *(f"{letter} {letter}" for letter in ascii_lowercase)]
    texts = [*kind.controls, *USER_DEFINED, *plain]
    types = [TokenType.CONTROL] * len(kind.controls) + [TokenType.USER_DEFINED] * len(USER_DEFINED)
    types += [TokenType.NORMAL] * len(plain)
    return Tokenizer(
        Metadata(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "qwen2",
                "tokenizer.ggml.tokens": texts,
                "tokenizer.ggml.merges": merges,
                "tokenizer.ggml.token_type": np.array(types, np.int32),
                "tokenizer.ggml.eos_token_id": texts.index(kind.end_of_turn),
            }
        ),
        len(texts),
    )


def template_of(kind: TemplateKind) -> ChatTemplate:
    return ChatTemplate(kind.source, {})


def letters(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The text in tokens of one byte: what a model may well generate, and a tokenizer would not."""
    alphabet = byte_alphabet()
    found = [tokenizer.id_of(alphabet[byte]) for byte in text.encode()]
    assert None not in found
    return tuple(token for token in found if token is not None)


def merging_backend(kind: TemplateKind = CHATML) -> Backend:
    """The reference model with merges: it writes letters as they come, so its text is seldom canonical."""
    tokenizer = merging_tokenizer(kind)
    likely = np.array(letters(tokenizer, ascii_lowercase + "  \n.,"), np.int64)
    end = tokenizer.id_of(kind.end_of_turn)
    assert end is not None
    return Backend(
        runner=ReferenceRunner(tokenizer.vocab_size, likely, end),
        tokenizer=tokenizer,
        template=template_of(kind),
        defaults=SamplingParams(),
        architecture="reference",
        device="mock",
        context_length=4096,
        parameters=1,
        weight_bytes=1,
        fingerprint="merging-1",
    )
