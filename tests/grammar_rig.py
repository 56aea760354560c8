"""Grammars over the reference vocabulary, one token a byte, written by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import numpy as np
from agentserve.engine.constraints.desk import Constraints
from agentserve.engine.constraints.state import Grammar
from agentserve.engine.protocol import Constraint, GenerateRequest
from agentserve.engine.replies.formats import ReplyFormats
from agentserve.engine.runners.reference_model import byte_tokenizer
from agentserve.engine.text.tokenise import Tokenizer

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


def random_reply(grammar: Grammar, tokenizer: Tokenizer, dice: random.Random, ends: Sequence[str]) -> str:
    """A whole reply in which any token may come next that the grammar lets through.

    Now and then one of `ends` comes, where it may, since free text would hardly ever come to its end.
    """
    text = b""
    for _ in range(5000):
        choices = allowed(grammar, tokenizer.vocab_size)
        if choices & tokenizer.eos_ids and (choices <= tokenizer.eos_ids or dice.random() < 0.5):
            return text.decode()
        written = [dice.choice(sorted(choices - tokenizer.eos_ids))]
        if dice.random() < 0.15:
            endings = map(tokenizer.encode, ends)
            written = dice.choice([ids for ids in endings if grammar.allows(ids) == len(ids)] or [written])
        for token in written:
            grammar.observe(token)
            text += tokenizer.spelling(token)
    raise AssertionError("the reply does not end")
