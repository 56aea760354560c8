"""What the run needs to know of an agent; one module for each holds the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL_REPLY = 256
"""Tokens of a reply of SmolLM2: enough to see one, and soon over."""


@dataclass(frozen=True)
class Place:
    """Where an agent works: an installation, a home of its own, a repository, and a server to ask.

    `small` says that the model's context holds 8,192 tokens, and not all that an agent would like to tell it.
    """

    programs: Path
    home: Path
    repository: Path
    base_url: str
    model: str
    small: bool

    def write(self, name: str, content: str | Mapping[str, Any]) -> Path:
        """Puts a file below the home folder, a mapping as JSON, and returns its path."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return path


@dataclass(frozen=True)
class Agent:
    """How one agent is installed, pointed at the daemon and asked, and how to see that it did what the model told it.

    `settle` writes the settings and returns the environment. `command` is the command line for a prompt; `goes_on`
    says that it belongs to the conversation before. `order` is a prompt for the model that says what it is told, to
    use a tool or to edit a file, and `unmet` tells from the bodies of all requests what did not come of it, or None.
    """

    name: str
    version: str
    install: Callable[[Path], Path]
    """Installs into a folder and returns the folder of its programs. Raises InstallError."""
    settle: Callable[[Place], dict[str, str]]
    command: Callable[[Place, str, bool], Sequence[str]]
    order: Callable[[Place], str]
    unmet: Callable[[Place, Sequence[Any]], str | None]


def call_order(name: str, arguments: Mapping[str, Any]) -> str:
    """A prompt that makes the scripted model call a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"Read the note. <reply><tool_call>\n{call}\n</tool_call></reply>"


def result_missing(bodies: Sequence[Any], expected: str) -> str | None:
    """None if one of the requests brought the result of a tool with this text in it, and the call before it."""
    for body in bodies:
        ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
        for message in body["messages"]:
            if message["role"] == "tool" and expected in json.dumps(message["content"]):
                return None if message["tool_call_id"] in ids else "the result belongs to no call"
    return "no result of the tool came back"
