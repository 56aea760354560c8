"""Grammars over the reference vocabulary, one token a byte, written by hand."""

from __future__ import annotations

import json

import numpy as np
from agentserve.engine.constraints.desk import Constraints
from agentserve.engine.constraints.state import Grammar
from agentserve.engine.protocol import Constraint, GenerateRequest
from agentserve.engine.replies.formats import ReplyFormats
from agentserve.engine.runners.reference_model import byte_tokenizer

TOKENIZER = byte_tokenizer()


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value), "response_format")


def grammar_of(constraint: Constraint) -> Grammar:
    request = GenerateRequest("r", prompt="x", constraint=constraint)
    grammar = Constraints(TOKENIZER, ReplyFormats()).grammar(request, ())
    assert grammar is not None
    return grammar


def allowed(grammar: Grammar, size: int = TOKENIZER.vocab_size) -> set[int]:
    return set(np.flatnonzero(np.isfinite(grammar.masked(np.zeros(size, np.float32)))).tolist())


def write(grammar: Grammar, text: str) -> None:
    for token in TOKENIZER.encode(text):
        assert token in allowed(grammar)
        grammar.observe(token)
