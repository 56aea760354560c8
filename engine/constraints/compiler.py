"""Constraints to grammars with llguidance, or to errors that say what is wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Set as AbstractSet

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from ..messages.constraint import Constraint
from ..text.tokenise import Tokenizer
from .errors import ConstraintError, invalid, unsupported
from .json_schema import JSON_OPTIONS, bounded
from .tokens import grammar_tokenizer

# Symbols of a grammar; llguidance has room for 65,000. An object with 4,000 fields that may be left out takes 45,000, and
# a second to compile.
MOST_SYMBOLS = 50_000
# States of a grammar's lexer, which are added as replies need them, some 0.3 kB each. Schemas of every day have hundreds.
MOST_STATES = 100_000
# Ways in which the text so far may go on. That object has 16,000 of them behind its brace, which take a tenth of a second.
MOST_WAYS = 20_000
# Expressions that are made of a source before its first token. The longest text that a schema may hold takes 260,000.
MOST_EXPRESSIONS = 300_000

_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.+)\]")
_TOO_MANY_SYMBOLS = re.compile("grammar size.*too big")
_TOO_MANY_EXPRESSIONS = re.compile("initial lexer configuration.*too big|too many expressions")
_REGEX_ERROR = re.compile(r"^error: (.+)", re.MULTILINE)
_PLACE = re.compile(r"^at \d+\(\d+\): ")


class Compiler:
    """Compiles for one vocabulary, which must have a token that ends a turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = grammar_tokenizer(tokenizer)
        self._ends = tokenizer.eos_ids
        self._limits = LLParserLimits(
            max_grammar_size=MOST_SYMBOLS,
            max_lexer_states=MOST_STATES,
            max_items_in_row=MOST_WAYS,
            initial_lexer_fuel=MOST_EXPRESSIONS,
            verbose_errors=False,
        )

    def compile(self, constraint: Constraint) -> LLMatcher:
        """A matcher that has seen nothing yet. Raises ConstraintError."""
        try:
            source = _source(constraint)
        except ValueError as error:
            raise invalid(constraint, str(error)) from None
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise _error(constraint, matcher.get_error())
        _try(constraint, matcher.deep_copy(), self._ends)
        return matcher


def _source(constraint: Constraint) -> str:
    """The constraint as llguidance reads it. Raises ValueError for a schema that is no JSON object."""
    match constraint.kind:
        case "json_schema":
            schema = json.dumps(bounded(json.loads(constraint.source)))
            return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.source)
        case "lark":
            return LLMatcher.grammar_from_lark(constraint.source)


def _try(constraint: Constraint, matcher: LLMatcher, ends: AbstractSet[int]) -> None:
    """Raises ConstraintError for a grammar that fails at its first token, or that no text fits but the empty one.

    `ends` are the tokens that end a turn.
    """
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if reason := _failure(matcher):
        raise _error(constraint, reason)
    if matcher.is_stopped() or not mask.any():
        raise invalid(constraint, "no text fits it but the empty one")
    tokens = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
    first = next((token for token in tokens if token not in ends), None)
    # What a lexer ran out of while it was built shows only here.
    if first is not None and not matcher.consume_token(first):
        raise _error(constraint, _failure(matcher))


def _failure(matcher: LLMatcher) -> str:
    """Why no token may come any more; nothing for a text that is whole."""
    reason = matcher.get_error().strip()
    return "" if reason.startswith("NoExtension") else reason


def _error(constraint: Constraint, reason: str) -> ConstraintError:
    if keywords := _UNSUPPORTED.search(reason):
        return unsupported(constraint.param, json.loads(f"[{keywords[1]}]"))
    if reason.startswith("oneOf constraints are not supported"):
        return unsupported(
            constraint.param, ["oneOf whose schemas a value can fit more than one of (use anyOf)"]
        )
    if "only supported when" in reason:
        return unsupported(constraint.param, [reason.replace("only supported when", "unless")])
    if _TOO_MANY_SYMBOLS.search(reason):
        return invalid(constraint, f"its grammar has more than {MOST_SYMBOLS:,} symbols, the limit")
    if _TOO_MANY_EXPRESSIONS.search(reason):
        return invalid(constraint, "it is too large with all of its repetitions written out")
    in_regex = _REGEX_ERROR.search(reason)
    return invalid(constraint, in_regex[1] if in_regex else _PLACE.sub("", reason.split("\n", 1)[0]))
