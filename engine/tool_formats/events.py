"""What a parser makes of a reply, in the order of the text."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call began. `index` counts the calls of the reply from 0, dropped ones too."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the arguments. All pieces of a call together are the JSON text of one object.

    The last brace comes only with the end: the pieces of a call that was dropped are never valid JSON.
    """

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete and well-formed."""

    index: int


@dataclass(frozen=True, slots=True)
class CallDropped:
    """What had begun as a call is none, or was cut; its whole text comes next, as Text."""

    index: int


Event = Text | Reasoning | CallStart | CallArguments | CallEnd | CallDropped


class ToolCallParser(Protocol):
    """Turns one reply into events. It keeps state, so every reply needs a new one.

    The events do not depend on how the text is cut into pieces, but for where Text, Reasoning and CallArguments are
    cut. No text makes a parser raise.
    """

    def feed(self, text: str) -> list[Event]:
        """Takes the next piece of the reply; returns what is certain now."""
        ...

    def finish(self) -> list[Event]:
        """The reply is over: returns what was held back. Nothing may be fed afterwards."""
        ...


def new_call_id() -> str:
    """A fresh id in OpenAI's form: `call_` and 24 hexadecimal digits, 96 bits of them random."""
    return "call_" + secrets.token_hex(12)
