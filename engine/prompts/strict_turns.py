"""Conversations for templates that are strict about turns, where clients are not.

Agents send several system messages, some in the midst, and two messages of one role in a row. Most templates take all of
it. Some want user and assistant to take turns, or know no system role, and refuse the rest; for those the same words are
put into fewer messages. What is changed is changed in its place, so a conversation that grows keeps its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..protocol import Message

_BETWEEN = "\n\n"
Messages = Sequence[Message]


def arrangements(messages: Messages) -> Iterator[Messages]:
    """The messages as they are, and then for stricter and stricter templates, as far as that makes a difference."""
    steps: tuple[Callable[[Messages], Messages], ...] = (_taking_turns, _without_system)
    yield messages
    for step in steps:
        changed = step(messages)
        if list(changed) != list(messages):
            messages = changed
            yield messages


def _taking_turns(messages: Messages) -> Messages:
    """At most one system message, at the beginning; later ones are the user's. Neighbours of one role are one."""
    turns: list[Message] = []
    for message in messages:
        if message.role == "system" and turns and turns[-1].role != "system":
            message = replace(message, role="user")
        if turns and _belong_together(turns[-1], message):
            turns[-1] = _joined(turns[-1], message)
        else:
            turns.append(message)
    return turns


def _without_system(messages: Messages) -> Messages:
    """The system text at the beginning of the first user message, or in place of one."""
    if not messages or messages[0].role != "system":
        return messages
    asked = replace(messages[0], role="user")
    return _taking_turns((asked, *messages[1:]))


def _belong_together(one: Message, other: Message) -> bool:
    """Each result of a tool is a message of its own, and nothing is said behind a call in its turn."""
    return one.role == other.role != "tool" and not one.tool_calls


def _joined(one: Message, other: Message) -> Message:
    texts = (message.content for message in (one, other))
    content = _BETWEEN.join(text for text in texts if text)
    return replace(other, content=content, reasoning=other.reasoning or one.reasoning)
