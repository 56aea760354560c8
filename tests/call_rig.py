"""Models that write calls in each notation, with one token a byte, and the grammars of their replies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
from agentserve.engine.constraints.desk import Constraints
from agentserve.engine.constraints.state import Grammar
from agentserve.engine.gguf.metadata import Metadata
from agentserve.engine.gguf.tokenizer import TokenType, byte_alphabet
from agentserve.engine.protocol import GenerateRequest, Message
from agentserve.engine.replies.formats import ReplyFormats
from agentserve.engine.text.tokenise import Tokenizer
from agentserve.engine.tool_formats import deepseek
from agentserve.engine.tool_formats.events import CallArguments, CallDropped, CallEnd, CallStart, Text
from agentserve.engine.tool_formats.formats import by_name
from agentserve.engine.tool_formats.tools import read_tools
from grammar_rig import allowed, random_reply

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "São <Paulo>", "", "<|im_end|>"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "hours": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}, "maxItems": 3},
    },
    "required": ["city"],
    "additionalProperties": False,
}
NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "where": {"$ref": "#/$defs/place"}},
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"line": {"type": "integer", "maximum": 99}},
            "additionalProperties": False,
        }
    },
}
TOOLS = [("get_weather", WEATHER), ("no_arguments", {}), ("note", NOTE)]


def tools_json(tools: Iterable[tuple[str, Any]], **fields: object) -> str:
    """The tools of a request, from names and schemas; `fields` are those of each function."""
    functions = [{"name": name, "parameters": schema, **fields} for name, schema in tools]
    return json.dumps([{"type": "function", "function": function} for function in functions])


TOOLS_JSON = tools_json(TOOLS)
STRICT = tools_json(TOOLS, strict=True)
DEEPSEEK = [getattr(deepseek, f"CALL{name}") for name in ("S_BEGIN", "S_END", "_BEGIN", "_END")]
CONTROLS = {
    "mistral": ["[TOOL_CALLS]", "[ARGS]"],
    "older mistral": ["[TOOL_CALLS]"],
    "deepseek": [*DEEPSEEK, deepseek.SEPARATOR],
    "hermes": ["<tool_call>", "</tool_call>"],
    "glm": ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "gemma4": ["<|tool_call>", "<tool_call|>", '<|"|>'],
    "function_gemma": ["<start_function_call>", "<end_function_call>", "<escape>"],
    "harmony": [
        f"<|{name}|>" for name in ("start", "channel", "message", "constrain", "end", "call", "return")
    ],
}
NOTATIONS = [
    "hermes",
    "qwen3_coder",
    "glm",
    "llama3",
    "mistral",
    "older mistral",
    "deepseek",
    "gemma4",
    "function_gemma",
    "tool_code",
    "harmony",
]
# What free text ends with, so that random replies come to their end.
ENDS = ["<|end|>", "<escape>", '<|"|>', "\n</parameter>\n", "</arg_value>\n", '"', "}"]
REPLIES = {
    "hermes": '<tool_call>\n{"name": "note", "arguments": {"text": "a\\n<b>", "where": {"line": 3}}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=note>\n<parameter=text>\na\n<b>\n</parameter>\n"
    '<parameter=where>\n{"line": 3}\n</parameter>\n</function>\n</tool_call>',
    "glm": "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>a\n<b></arg_value>\n"
    '<arg_key>where</arg_key>\n<arg_value>{"line": 3}</arg_value>\n</tool_call>',
    "llama3": '{"name": "note", "parameters": {"text": "a\\n<b>", "where": {"line": 3}}}',
    "mistral": '[TOOL_CALLS]note[ARGS]{"text": "a\\n<b>", "where": {"line": 3}}',
    "older mistral": '[TOOL_CALLS][{"name": "note", "arguments": {"text": "a\\n<b>", "where": {"line": 3}}}]',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>note<｜tool▁sep｜>"
    '{"text": "a\\n<b>", "where": {"line": 3}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "gemma4": '<|tool_call>call:note{text:<|"|>a\n<b><|"|>,where:{line:3}}<tool_call|>',
    "function_gemma": "<start_function_call>call:note{text:<escape>a\n<b><escape>,where:{line:3}}<end_function_call>",
    "tool_code": '```tool_code\nnote(text="a\\n<b>", where={"line": 3})\n```',
    # The marker behind it ends the turn.
    "harmony": "<|channel|>commentary to=functions.note <|constrain|>json<|message|>"
    '{"text": "a\\n<b>", "where": {"line": 3}}',
}


def tokenizer(controls: list[str]) -> Tokenizer:
    """One token a byte, and control tokens."""
    texts = [*byte_alphabet(), "<|im_end|>", *controls]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * (1 + len(controls))
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": texts,
        "merges": [],
        "token_type": np.array(types, np.int32),
        "eos_token_id": 256,
    }
    return Tokenizer(Metadata({f"tokenizer.ggml.{key}": value for key, value in keys.items()}), len(texts))


class Desk:
    """The grammar of a reply that has to call one of `required`, for a model with the notation's control tokens."""

    def __init__(
        self,
        notation: str,
        required: tuple[str, ...],
        *,
        parallel: bool = True,
        special: bool = True,
        tools: Iterable[tuple[str, Any]] = TOOLS,
    ) -> None:
        self.tools = tools_json(tools)
        self.form = by_name(notation.removeprefix("older "))
        self.tokenizer = tokenizer(CONTROLS.get(notation, []) if special else [])
        request = GenerateRequest(
            "r",
            (Message("user", "x"),),
            tools_json=self.tools,
            required_tools=required,
            parallel_tool_calls=parallel,
        )
        grammar = Constraints(self.tokenizer, ReplyFormats(self.form)).grammar(request, ())
        assert grammar is not None
        self.grammar: Grammar = grammar

    def allowed(self) -> set[int]:
        return allowed(self.grammar, self.tokenizer.vocab_size)

    def accepts(self, text: str) -> bool:
        """Writes `text`; whether it was let through and may end there."""
        for token in self.tokenizer.encode(text):
            if token not in self.allowed():
                return False
            self.grammar.observe(token)
        return bool(self.allowed() & self.tokenizer.eos_ids)

    def random_reply(self, seed: int) -> str:
        return random_reply(self.grammar, self.tokenizer, random.Random(seed), ENDS)

    def calls(self, *pieces: str) -> list[tuple[str, Any]]:
        """What the parser reads of a reply in pieces; nothing may be left over."""
        parser = self.form.parser(read_tools(self.tools))
        events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
        assert not [event for event in events if isinstance(event, Text | CallDropped)]
        starts = [event for event in events if isinstance(event, CallStart)]
        assert len(starts) == len([event for event in events if isinstance(event, CallEnd)])
        return [(start.name, json.loads(arguments(events, start.index))) for start in starts]


def arguments(events: list[Any], index: int) -> str:
    return "".join(e.fragment for e in events if isinstance(e, CallArguments) and e.index == index)


def grammar_for(notation: str, controls: list[str], **fields: Any) -> tuple[Grammar | None, Tokenizer]:
    vocabulary = tokenizer(controls)
    request = GenerateRequest("r", (Message("user", "x"),), **{"tools_json": TOOLS_JSON, **fields})
    return Constraints(vocabulary, ReplyFormats(by_name(notation))).grammar(request, ()), vocabulary


def written(grammar: Grammar, vocabulary: Tokenizer, text: str) -> bool:
    """Whether all of a text was let through."""
    for token in vocabulary.encode(text):
        if not np.isfinite(grammar.masked(np.zeros(vocabulary.vocab_size, np.float32))[token]):
            return False
        grammar.observe(token)
    return True


def may_end(grammar: Grammar, vocabulary: Tokenizer) -> bool:
    masked = grammar.masked(np.zeros(vocabulary.vocab_size, np.float32))
    return bool(np.isfinite(masked[list(vocabulary.eos_ids)]).any())
