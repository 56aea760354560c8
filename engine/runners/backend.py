"""A model on its device, whatever kind of model and device it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ..prompts.templates import ChatTemplate
from ..protocol import LoadStage, SamplingParams
from ..text.tokenise import Tokenizer
from .runner import Runner

Progress = Callable[[LoadStage], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """A model on its device, before pools are allocated. `context_length` is the model's own.

    The first steps run inside `first_steps()`, which keeps memory low that only they need.
    """

    runner: Runner
    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingParams
    architecture: str
    device: str
    context_length: int
    parameters: int
    weight_bytes: int
    fingerprint: str
    cache_hit: bool = False
    notes: tuple[str, ...] = ()
    first_steps: Callable[[], AbstractContextManager[None]] = nullcontext
