"""Every format by name, and how a model's own is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from . import deepseek
from .events import new_call_id
from .gemma import FUNCTION_GEMMA, GEMMA4, gemma_reply, tool_code_reply
from .grammar import Reading, Source
from .harmony import harmony_reply
from .llama import llama3_reply
from .mistral import mistral_reply
from .parser import GrammarParser
from .tagged import glm_reply, hermes_reply, qwen3_coder_reply
from .tools import Tools


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way of writing tool calls.

    A chat template with one of `signs` in its text uses the format. `tokens` are the special tokens that the grammar
    reads: they have to reach the parser as text, while a detokenizer leaves control tokens out. With
    `has_reasoning` the format says itself what is reasoning.
    """

    name: str
    grammar: Callable[[Source, Tools], Reading[None]]
    signs: tuple[str, ...]
    tokens: frozenset[str] = frozenset()
    has_reasoning: bool = False

    def parser(self, tools: Tools, new_id: Callable[[], str] = new_call_id) -> GrammarParser:
        """A parser for one reply to a request with these tools."""
        return GrammarParser(lambda source: self.grammar(source, tools), new_id)


_TAGS = frozenset({"<tool_call>", "</tool_call>"})
_HARMONY_TOKENS = ("start", "channel", "message", "constrain", "end", "call", "return")
_DEEPSEEK_TOKENS = (
    deepseek.CALLS_BEGIN,
    deepseek.CALLS_END,
    deepseek.CALL_BEGIN,
    deepseek.CALL_END,
    deepseek.SEPARATOR,
)

# In the order in which they are tried: a format stands before those whose signs its templates contain too.
FORMATS = (
    ToolFormat(
        "harmony",
        harmony_reply,
        ("<|channel|>",),
        frozenset(f"<|{name}|>" for name in _HARMONY_TOKENS),
        has_reasoning=True,
    ),
    ToolFormat("deepseek", deepseek.deepseek_reply, (deepseek.CALLS_BEGIN,), frozenset(_DEEPSEEK_TOKENS)),
    ToolFormat(
        "gemma4",
        partial(gemma_reply, notation=GEMMA4),
        (GEMMA4.start,),
        frozenset({GEMMA4.start, GEMMA4.end, GEMMA4.quote}),
    ),
    ToolFormat(
        "function_gemma",
        partial(gemma_reply, notation=FUNCTION_GEMMA),
        (FUNCTION_GEMMA.start,),
        frozenset({FUNCTION_GEMMA.start, FUNCTION_GEMMA.end, FUNCTION_GEMMA.quote}),
    ),
    ToolFormat(
        "glm",
        glm_reply,
        ("<arg_key>",),
        _TAGS | {f"<{s}arg_{n}>" for s in ("", "/") for n in ("key", "value")},
    ),
    ToolFormat("qwen3_coder", qwen3_coder_reply, ("<function=",), _TAGS),
    ToolFormat("hermes", hermes_reply, ("<tool_call>",), _TAGS),
    ToolFormat(
        "mistral", mistral_reply, ("[TOOL_CALLS]",), frozenset({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"})
    ),
    ToolFormat(
        "llama3", llama3_reply, ("<|python_tag|>", '{"name": function name'), frozenset({"<|python_tag|>"})
    ),
    ToolFormat("tool_code", tool_code_reply, ("```tool_code",)),
)


def detect(template: str, special_tokens: Iterable[str] = ()) -> ToolFormat | None:
    """The format of a model by the text of its chat template, and if that says nothing, by its special tokens.

    None when neither does: the model was not taught any of the formats, or the prompt has to say which.
    """
    by_template = (f for f in FORMATS if any(sign in template for sign in f.signs))
    tokens = frozenset(special_tokens)
    by_tokens = (f for f in FORMATS if not tokens.isdisjoint(f.signs))
    return next(by_template, None) or next(by_tokens, None)


def by_name(name: str) -> ToolFormat:
    """The format of this name. Raises ValueError, which lists the names."""
    for known in FORMATS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise ValueError(f"no tool format is called {name!r}; there are {names}")
