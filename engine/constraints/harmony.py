"""Replies of gpt-oss as grammars: every message has a channel, and reasoning is one of them."""

from __future__ import annotations

from .lark import GrammarWriter

CALL = "<|call|>"
NEXT = "<|start|>assistant"
"""What stands between two messages of a turn, behind the end of the first."""
ANSWER = "<|channel|>final<|message|>"

_CHANNEL, _MESSAGE, _END = "<|channel|>", "<|message|>", "<|end|>"
# Reasoning and text that spelled these in letters would be read as messages of their own.
_MARKERS = ("<|start|>", _CHANNEL, _END, CALL, "<|return|>")


def call(writer: GrammarWriter, tool: str) -> str:
    """A call without the marker behind it."""
    return writer.all_of(writer.text(_header(tool)), writer.arguments(tool))


def sample(tool: str) -> str:
    """A call without arguments."""
    return f"{_header(tool)}{{}}{CALL}"


def thought(writer: GrammarWriter) -> str:
    """One message of reasoning, or none."""
    message = writer.up_to(_END, begin=f"{_CHANNEL}analysis{_MESSAGE}", without=_MARKERS)
    return f"({message} {writer.text(NEXT)})?"


def has_markers(writer: GrammarWriter) -> bool:
    """Whether the model's vocabulary has a token for every marker."""
    return all(map(writer.has, (*_MARKERS, _MESSAGE)))


def free_reply(writer: GrammarWriter, calls: str) -> str:
    """Any messages, the last of which may be a call.

    All messages are in it, since a call may be addressed before its channel is named.
    """
    channel = writer.rule(f'{writer.text(_CHANNEL)} ("analysis" | "commentary" | "final")')
    message = writer.all_of(channel, writer.up_to(_END, begin=_MESSAGE, without=_MARKERS), writer.text(NEXT))
    last = writer.all_of(channel, writer.text(_MESSAGE), writer.free(without=_MARKERS))
    return f"({message})* ({last} | {calls})"


def _header(tool: str) -> str:
    return f"{_CHANNEL}commentary to=functions.{tool} <|constrain|>json{_MESSAGE}"
