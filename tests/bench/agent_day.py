"""The script of `replay.py`: what an agent sends in a day, the same for every server, down to the letter.

    main            start, ten tool turns, each reading a file; a call for a title after some of them
    sub-agents      three side by side, with a system text of their own, two turns each
    question        the user asks something in the main conversation
    retry           the same request once more
    edit            the question worded anew
    resume          one more turn, after a restart of the server

File contents and system texts are made up, but look like code and rules. Sizes are in tokens of the server's model,
turned into characters by a density that was measured before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
SYSTEM_TOKENS, FILE_TOKENS, TASK_TOKENS = 3000, 280, 60
TOOL_TURNS, SUB_AGENTS, SUB_TURNS = 10, 3, 2
TITLE_AFTER = frozenset({0, 4, 8})
# fmt: off
_WORDS = [
    "account", "batch", "buffer", "cache", "cell", "chart", "client", "codec", "cursor", "digest", "driver",
    "entry", "event", "field", "filter", "frame", "graph", "handle", "header", "index", "item", "job",
    "key", "label", "layer", "ledger", "limit", "list", "lock", "map", "mark", "merge", "node", "offset",
    "order", "page", "parser", "path", "plan", "pool", "port", "queue", "range", "record", "reply", "route",
    "row", "rule", "scale", "schema", "scope", "seed", "segment", "server", "session", "shard", "signal",
    "slot", "source", "stack", "state", "step", "store", "stream", "table", "tag", "task", "text", "thread",
    "ticket", "token", "trace", "tree", "unit", "value", "vector", "view", "worker", "zone",
]
# fmt: on
_LINES = (
    "def {a}_{b}({c}: {D}, {e}: int = {n}) -> {F}:",
    "    {a} = {b}.{c}({d}, {e}[{n}:])",
    "    if {a}.{b} > {n} and not {c}:",
    "        raise {A}Error(f'{b} {{{c}}} of {d}')",
    "    return [{a}.{b}({c}) for {c} in {d} if {c}.{e}]",
    "    # The {a} of a {b} is never older than its {c}.",
)
_RULES = (
    "Never change the {a} of a {b} before its {c} was read.",
    "When a {a} fails, look at the {b} first, then at the {c}, and say which {d} it was.",
    "Prefer a small {a} over a large {b}; {n} lines are too many for one {c}.",
    "Ask before you remove a {a}, a {b} or a {c}.",
)


@dataclass(frozen=True)
class Request:
    """One chat completion. `tools` are sent by agents that have any."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


# Sends requests side by side, under the name of a phase, and returns the texts of the replies.
Ask = Callable[[str, Sequence[Request]], list[str]]


@dataclass(frozen=True)
class Texts:
    """Made-up texts of about so many tokens, times `scale`, for a model with `density` characters a token.

    Another `seed` gives other texts of the same kind.
    """

    density: float
    scale: float = 1.0
    seed: int = 0

    def code(self, name: str, tokens: int) -> str:
        """A file; another one for each name."""
        return self._lines(f"file {name}", _LINES, tokens)

    def rules(self, name: str, tokens: int) -> str:
        """A part of a system text."""
        return self._lines(f"rules {name}", _RULES, tokens)

    def _lines(self, name: str, forms: Sequence[str], tokens: int) -> str:
        dice, lines, size = random.Random(f"{self.seed} {name}"), list[str](), 0
        wanted = int(tokens * self.density * self.scale)
        while size < wanted:
            words = {letter: dice.choice(_WORDS) for letter in "abcdef"}
            classes = {letter.upper(): word.title() for letter, word in words.items()}
            lines.append(dice.choice(forms).format(**words, **classes, n=dice.randrange(2, 400)))
            size += len(lines[-1]) + 1
        return "\n".join(lines)[:wanted]


@dataclass
class Talk:
    """A conversation as its client keeps it. With `own_words` its history has these in place of the replies given."""

    system: str
    tools: tuple[dict[str, Any], ...] = ()
    own_words: str | None = None
    messages: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        self.messages = [{"role": "system", "content": self.system}]

    def user(self, text: str) -> Request:
        self.messages.append({"role": "user", "content": text})
        return self.request()

    def replied(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": self.own_words or text})

    def file_read(self, number: int, path: str, content: str) -> Request:
        """The last reply becomes a call of `read_file`, and its result follows."""
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": path})},
        }
        self.messages[-1] = {**self.messages[-1], "tool_calls": [call]}
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return self.request()

    def request(self) -> Request:
        return Request(tuple(self.messages), self.tools)


TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": list(keys),
            },
        },
    }
    for name, about, keys in (
        ("read_file", "Reads a file of the project.", ("path",)),
        ("write_file", "Writes a file of the project.", ("path", "content")),
        ("run", "Runs a command and returns what it prints.", ("command",)),
        ("search", "Finds lines that match a pattern.", ("pattern", "folder")),
    )
)


@dataclass(frozen=True)
class Day:
    """Plays the script. `system_tokens` are those of the system text, which with the tools makes about 3,000."""

    texts: Texts
    system_tokens: int
    ask: Ask
    own_words: str | None = None

    def play(self, restart: Callable[[], None] | None) -> None:
        """All of it; without `restart` it ends before the server would be restarted."""
        talk = Talk(self.texts.rules("main", self.system_tokens), TOOLS, self.own_words)
        self._work(talk)
        self._delegate()
        self._turn("question", talk, talk.user(self.texts.rules("question", TASK_TOKENS)))
        del talk.messages[-1:]
        self._turn("retry", talk, talk.request())
        del talk.messages[-2:]
        self._turn("edit", talk, talk.user(self.texts.rules("worded anew", TASK_TOKENS)))
        if restart is not None:
            restart()
            self._turn("resume", talk, talk.user(self.texts.rules("resume", TASK_TOKENS)))

    def _work(self, talk: Talk) -> None:
        task = self.texts.rules("task", TASK_TOKENS)
        self._turn("start", talk, talk.user(task))
        for number in range(TOOL_TURNS):
            if number in TITLE_AFTER:
                title = Talk("Name the conversation in at most six words.")
                self.ask("title", [title.user(f"Step {number} of this:\n\n{task}")])
            path = f"src/part_{number}.py"
            self._turn("tool turn", talk, talk.file_read(number, path, self.texts.code(path, FILE_TOKENS)))

    def _turn(self, phase: str, talk: Talk, request: Request) -> None:
        (text,) = self.ask(phase, [request])
        talk.replied(text)

    def _delegate(self) -> None:
        system = self.texts.rules("sub-agent", SYSTEM_TOKENS // 3)
        talks = [Talk(system, TOOLS, self.own_words) for _ in range(SUB_AGENTS)]
        for turn in range(SUB_TURNS):
            asked = [
                talk.user(self.texts.code(f"part {index} of {turn}", FILE_TOKENS))
                for index, talk in enumerate(talks)
            ]
            for talk, text in zip(talks, self.ask("sub-agents", asked), strict=True):
                talk.replied(text)
