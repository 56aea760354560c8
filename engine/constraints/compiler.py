"""Constraints to grammars with llguidance, or to errors that say what is wrong with them."""

from __future__ import annotations

import json
import re

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

_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.+)\]")
_TOO_BIG = re.compile(r"(?:grammar size|initial lexer configuration).*too big")
_REGEX_ERROR = re.compile(r"^error: (.+)", re.MULTILINE)
_PLACE = re.compile(r"^at \d+\(\d+\): ")


class Compiler:
    """Compiles for one vocabulary, which must have a token that ends a turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = grammar_tokenizer(tokenizer)
        self._limits = LLParserLimits(
            max_grammar_size=MOST_SYMBOLS, max_lexer_states=MOST_STATES, verbose_errors=False
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
        _try(constraint, matcher.deep_copy())
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


def _try(constraint: Constraint, matcher: LLMatcher) -> None:
    """Raises ConstraintError for a grammar that fails at its first token, or that no text fits but the empty one."""
    is_possible, reason = any(matcher.compute_bitmask()), matcher.get_error().strip()
    if reason and not reason.startswith("NoExtension"):
        raise _error(constraint, reason)
    if matcher.is_stopped() or not is_possible:
        raise invalid(constraint, "no text fits it but the empty one")


def _error(constraint: Constraint, reason: str) -> ConstraintError:
    if keywords := _UNSUPPORTED.search(reason):
        return unsupported(constraint.param, json.loads(f"[{keywords[1]}]"))
    if reason.startswith("oneOf constraints are not supported"):
        return unsupported(
            constraint.param, ["oneOf whose schemas a value can fit more than one of (use anyOf)"]
        )
    if "only supported when" in reason:
        return unsupported(constraint.param, [reason.replace("only supported when", "unless")])
    if _TOO_BIG.search(reason):
        return invalid(constraint, f"its grammar has more than {MOST_SYMBOLS:,} symbols, the limit")
    in_regex = _REGEX_ERROR.search(reason)
    return invalid(constraint, in_regex[1] if in_regex else _PLACE.sub("", reason.split("\n", 1)[0]))
