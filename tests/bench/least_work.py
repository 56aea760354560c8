"""The smallest number of prompt tokens that a server has to compute which forgets nothing.

Of a prompt, that is all behind the longest beginning that it shares with anything computed before, prompt or reply,
but at least the last token, whose logits are wanted. What arrives side by side is counted in order: a common
beginning once.

With the model's GGUF file, prompts are rendered and tokenised here, as the daemon does, and compared token by token.
Without one they are compared as text, each message behind its role, and the common part is turned into tokens by the
numbers that the server reports: right where one prompt extends another, as most do, and about right where two part in
the middle, as tokens and characters are about evenly spread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from agent_day import Request
from agentserve.daemon.openai.chat_schema import parse_chat
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.prefix.conversations import common_prefix
from agentserve.engine.prompts.prompting import Prompter
from agentserve.engine.prompts.templates import read_template
from agentserve.engine.protocol import LoadModel, SamplingParams
from agentserve.engine.runners.reference_model import open_reference
from agentserve.engine.text.tokenise import read_tokenizer
from numpy.typing import NDArray

from completions import Answer

Units = NDArray[np.int32]


class Text(Protocol):
    """Prompts and replies as units that can be compared: tokens, or characters in place of them."""

    def prompt(self, request: Request) -> Units:
        """The units of a prompt."""
        ...

    def computed(self, answer: Answer) -> Units:
        """The units of a reply but those of the last token: it was sampled, and nothing computed behind it."""
        ...


class Tokens:
    """The tokens of a model, by its own template and vocabulary."""

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter

    def prompt(self, request: Request) -> Units:
        body = {"model": "replay", "messages": request.messages, "tools": request.tools or None}
        parsed = parse_chat(json.dumps(body).encode(), "replay").generate
        return np.array(self._prompter.prompt(parsed).tokens, np.int32)

    def computed(self, answer: Answer) -> Units:
        tokens = self._prompter.tokenizer.encode(answer.text)
        return np.array(tokens[: max(answer.completion_tokens - 1, 0)], np.int32)


class Characters:
    """Texts as they are, where nothing is known of the model but whether its prompts show tools."""

    def __init__(self, with_tools: bool) -> None:
        self._with_tools = with_tools

    def prompt(self, request: Request) -> Units:
        tools = json.dumps(request.tools) if self._with_tools else ""
        told = "".join(_told(message, self._with_tools) for message in request.messages)
        return _characters(f"{tools}{told}\nassistant\n")

    def computed(self, answer: Answer) -> Units:
        share = 1 - 1 / max(answer.completion_tokens, 1)
        return _characters(answer.text[: round(len(answer.text) * share)])


def text_of(model: str | None, with_tools: bool) -> Text:
    """Tokens of a GGUF file or of the built-in model `mock`, characters for None. Raises ModelFileError."""
    if model is None:
        return Characters(with_tools)
    if model == "mock":
        backend = open_reference(LoadModel("reference", None))
        return Tokens(Prompter(backend.tokenizer, backend.template, backend.defaults, backend.context_length))
    source = open_gguf(Path(model))
    tokenizer = read_tokenizer(source)
    template = read_template(source, tokenizer)
    return Tokens(Prompter(tokenizer, template, SamplingParams(), source.config.context_length))


@dataclass(frozen=True)
class Computed:
    """A prompt and its reply without the last token, in units, and how many tokens either has."""

    prompt: Units
    reply: Units
    prompt_tokens: int
    reply_tokens: int

    def shared(self, prompt: Units) -> float:
        """The tokens of this that another prompt begins with."""
        common = common_prefix(self.prompt, prompt)
        if common < len(self.prompt):
            return common * self.prompt_tokens / len(self.prompt)
        behind = common_prefix(self.reply, prompt[common:])
        return self.prompt_tokens + behind * self.reply_tokens / max(len(self.reply), 1)


class LeastWork:
    """All that was computed so far, and what the next prompt takes at least."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._computed: list[Computed] = []

    def take(self, request: Request, answer: Answer) -> int:
        """The least that a request took, in tokens; what it computed is known from here on."""
        prompt, reply = self._text.prompt(request), self._text.computed(answer)
        shared = max((known.shared(prompt) for known in self._computed), default=0)
        tokens = max(answer.completion_tokens - 1, 0)
        self._computed.append(Computed(prompt, reply, answer.prompt_tokens, min(len(reply), tokens)))
        return max(1, round(answer.prompt_tokens - shared))


def _told(message: Mapping[str, object], with_calls: bool) -> str:
    calls = json.dumps(message["tool_calls"]) if with_calls and "tool_calls" in message else ""
    return f"\n{message['role']}\n{message['content']}{calls}"


def _characters(text: str) -> Units:
    return np.array([ord(letter) for letter in text], np.int32)
