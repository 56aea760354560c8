"""From a request to the grammar of its reply. Runs on the intake thread, before the request is queued.

llguidance compiles grammars and computes which tokens may come next. Only `compiler`, `tokens` and `state` know it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ..messages.constraint import Constraint
from ..messages.request import GenerateRequest
from ..replies.formats import ReplyFormats
from ..text.tokenise import Tokenizer
from .errors import ConstraintError, check_size
from .gate import HARMONY, CallGrammar, GatedGrammar, ReasoningTokens, reasoning_tokens
from .state import Grammar, ReplyGrammar
from .tools import answer_or_calls, free_calls, required_calls

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from .compiler import Compiler

# Agents send the same schemas and tools with every request.
_KEPT = 16


class Constraints:
    """The grammars of one model's replies. Any thread may call it.

    `formats` say how the model marks its reasoning, which no constraint holds for, and how it writes calls.
    """

    def __init__(self, tokenizer: Tokenizer, formats: ReplyFormats) -> None:
        self._tokenizer = tokenizer
        self._formats = formats
        self._lock = threading.Lock()
        self._compiled = lru_cache(_KEPT)(self._compile)

    def grammar(self, request: GenerateRequest, prompt: Sequence[int]) -> Grammar | None:
        """A fresh grammar for the reply to a request whose prompt has these tokens; None where it may be any text.

        Raises ConstraintError.
        """
        if request.required_tools:
            return self._whole(required_calls(request, self._formats.calls, self._tokenizer), request, prompt)
        if request.constraint is not None:
            check_size(request.constraint)
            return self._whole(self._answer(request, request.constraint), request, prompt)
        return self._free(request) if request.messages and request.tools_json else None

    def forget(self) -> None:
        """Compiles anew what comes next.

        Replies of one grammar share what was worked out for it, up to a limit that a reply may have broken at.
        """
        self._compiled.cache_clear()

    def _answer(self, request: GenerateRequest, asked: Constraint) -> Constraint:
        """What a request asks of its answer, if it may have calls instead where tools are offered."""
        if not request.messages or request.tools_json is None:
            return asked
        return answer_or_calls(request, asked, self._formats.calls, self._tokenizer)

    def _whole(self, constraint: Constraint, request: GenerateRequest, prompt: Sequence[int]) -> Grammar:
        """A grammar for all of a reply but its reasoning."""
        grammar = self._fresh(constraint)
        # A grammar with calls in channels has the reasoning in it, which is a channel too.
        has_reasoning = self._has_channels and constraint is not request.constraint
        if not request.messages or self._gate is None or has_reasoning:
            return grammar
        opened = self._has_channels or self._formats.opens_reasoning(self._tokenizer, prompt)
        return GatedGrammar(grammar, self._tokenizer, self._gate, opened)

    def _free(self, request: GenerateRequest) -> Grammar | None:
        """A grammar for the calls that a reply may have; None where nobody asks for it or no token marks them."""
        calls = free_calls(request, self._formats.calls, self._tokenizer)
        if calls is None:
            return None
        begun = self._fresh(calls.constraint)
        if calls.marker is None:
            return begun
        begun.observe(calls.marker)
        return CallGrammar(calls.marker, begun.copy)

    def _fresh(self, constraint: Constraint) -> ReplyGrammar:
        check_size(constraint)
        with self._lock:
            return ReplyGrammar(self._compiled(constraint)).copy()

    @cached_property
    def _compiler(self) -> Compiler:
        # Imported here: it takes a tenth of a second, and most workers are never asked for a constraint.
        from .compiler import Compiler

        return Compiler(self._tokenizer)

    @property
    def _has_channels(self) -> bool:
        return self._formats.calls is not None and self._formats.calls.has_reasoning

    @cached_property
    def _gate(self) -> ReasoningTokens | None:
        form = HARMONY if self._has_channels else self._formats.reasoning
        return reasoning_tokens(self._tokenizer, form) if form else None

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if not self._tokenizer.eos_ids:
            message = (
                f"{constraint.param}: this model has no token that ends an answer, so none can be constrained"
            )
            raise ConstraintError("unsupported_parameter", message, constraint.param)
        return self._compiler.compile(constraint)
