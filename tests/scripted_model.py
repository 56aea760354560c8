"""A model that says what it is told to: the text between `<reply>` and `</reply>` in its prompt, the last one there.

It has a real tokenizer, template and KV cache, so that all of the engine works as with any model: the cache holds the
tokens themselves, and what comes next follows from them alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from agentserve.engine.prompts.templates import ChatTemplate
from agentserve.engine.protocol import LoadModel, SamplingParams
from agentserve.engine.runners.backend import Backend
from agentserve.engine.runners.reference_model import byte_tokenizer
from agentserve.engine.runners.runner import KvGeometry, Logits, SequenceSlice, Stateless, StepPlan
from agentserve.engine.text.tokenise import Tokenizer
from numpy.typing import NDArray
from transcript_models import THINKING

BLOCK_TOKENS = 32
_CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<reply>",
    "</reply>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
# Like that of Qwen2.5: a turn without words begins with its call.
_HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' ~ (tools | tojson) ~ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ ('\n' ~ m.content if m.content or not m.tool_calls else '') }}"
    "{% for call in m.tool_calls or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' ~ call.function.name ~ \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Like that of Mistral 7B Instruct v0.3, whose ids have nine letters and digits.
_MISTRAL = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "{% if call.id|length != 9 %}{{ raise_exception('Tool call IDs should be of length 9!') }}{% endif %}"
    '{{ \'[TOOL_CALLS][{"name": "\' ~ call.function.name ~ \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}]' }}{% endfor %}"
    "{% if m.role == 'tool' %}{{ ' for ' ~ m.tool_call_id }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Opens the reasoning of each reply, and says how much of it is wanted.
_OPENING = (
    "{% if reasoning_effort is defined %}{{ '<|im_start|>system\neffort: ' ~ reasoning_effort ~ '<|im_end|>\n' }}{% endif %}"
    + THINKING.source.removesuffix("{% endif %}").replace(
        "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
        "{{ '<think>\n' if enable_thinking is not defined or enable_thinking else '<think>\n\n</think>\n\n' }}",
    )
    + "{% endif %}"
)
_HARMONY = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n<|channel|>final<|message|>' ~ m.content ~ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "hermes": _HERMES,
    "thinking": THINKING.source,
    "opening": _OPENING,
    "mistral": _MISTRAL,
    "harmony": _HARMONY,
}


def scripted_tokenizer() -> Tokenizer:
    """One token a byte, and control tokens behind them."""
    return byte_tokenizer(_CONTROLS)


class ScriptedRunner(Stateless):
    """Implements `Runner`. `next_token` tells from all tokens of a sequence so far which one follows. Each step takes
    `step_seconds`."""

    def __init__(
        self, vocab_size: int, next_token: Callable[[NDArray[np.int32]], int], step_seconds: float = 0.0
    ) -> None:
        self.vocab_size = vocab_size
        self._next_token = next_token
        self._step_seconds = step_seconds
        self._blocks = np.zeros((0, BLOCK_TOKENS), np.int32)

    @property
    def geometry(self) -> KvGeometry:
        return KvGeometry(BLOCK_TOKENS, BLOCK_TOKENS * 4)

    def allocate(self, blocks: int, state_rows: int) -> None:
        self._blocks = np.zeros((blocks, BLOCK_TOKENS), np.int32)

    def forward(self, plan: StepPlan) -> Logits:
        if self._step_seconds:
            time.sleep(self._step_seconds)
        rows = [row for part in plan.slices for row in self._run(part)]
        return np.array(rows, np.float32).reshape(-1, self.vocab_size)

    def _run(self, part: SequenceSlice) -> list[NDArray[np.float32]]:
        table = np.array(part.block_table, np.int64)
        for position, token in enumerate(part.tokens, part.past):
            self._blocks[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token
        known = self._blocks[table].reshape(-1)
        return [self._row(known[: part.past + index + 1]) for index in part.rows]

    def _row(self, known: NDArray[np.int32]) -> NDArray[np.float32]:
        row = np.zeros(self.vocab_size, np.float32)
        row[self._next_token(known)] = 100.0
        return row

    def copy_block(self, source: int, target: int) -> None:
        self._blocks[target] = self._blocks[source]

    def read_block(self, block: int) -> bytes:
        return self._blocks[block].tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        self._blocks[block] = np.frombuffer(data, np.int32)


def _follower(tokenizer: Tokenizer) -> Callable[[NDArray[np.int32]], int]:
    """What follows: the script behind what stands in the last turn already, and then the end of the turn."""
    turn, end, begin, stop, line = (
        tokenizer.encode(text)[0] for text in ("<|im_start|>", "<|im_end|>", "<reply>", "</reply>", "\n")
    )

    def next_token(known: NDArray[np.int32]) -> int:
        begins, stops, turns = (np.flatnonzero(known == token) for token in (begin, stop, turn))
        said = known[turns[-1] :].tolist() if len(turns) else []
        if not len(begins) or not len(stops) or line not in said:
            # Nothing was told, or a draft went astray.
            return end
        script = known[begins[-1] + 1 : stops[-1]]
        place = len(said) - said.index(line) - 1
        return int(script[place]) if place < len(script) else end

    return next_token


def scripted_backend(template: str, step_seconds: float = 0.0, parameters: int = 1) -> Backend:
    """The model with one of TEMPLATES."""
    tokenizer = scripted_tokenizer()
    return Backend(
        runner=ScriptedRunner(tokenizer.vocab_size, _follower(tokenizer), step_seconds),
        tokenizer=tokenizer,
        template=ChatTemplate(TEMPLATES[template], tokenizer.special_tokens),
        defaults=SamplingParams(temperature=0.0),
        architecture="scripted",
        device="mock",
        context_length=16_384,
        parameters=parameters,
        weight_bytes=1,
        fingerprint=f"scripted-{template}",
    )


def scripted(template: str) -> Callable[[int], list[str]]:
    """The command of a worker with this model, as the daemon starts it."""
    program = Path(__file__).parent / "daemon/scripted_worker.py"
    return lambda descriptor: [sys.executable, "-P", str(program), str(descriptor), template]


def open_scripted(template: str) -> Callable[[LoadModel], Backend]:
    """Stands in for `reference_model.open_reference`. One with a draft model is much larger than that."""
    return lambda spec: scripted_backend(template, spec.reference_step_s, 100 if spec.draft_model else 1)
