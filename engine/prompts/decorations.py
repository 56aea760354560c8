"""Lines that clients put before the system text and that change every session: dropped before rendering.

Claude Code begins its first system block with `x-anthropic-billing-header: cc_version=…; cc_entrypoint=…; cch=…;`.
It tells the vendor's servers whom to bill, says nothing to a model, and would part every session from the next one
at its first token. The setting `strip_decorations` (on unless switched off) decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from threading import Lock

from ..protocol import Message

logger = logging.getLogger("agentserve.decorations")

# A header of `key=value;` pairs ends where they do, as clients may join it with the next block without a newline.
# Any other header is the whole line.
_HEADER = re.compile(r"(x-anthropic-[a-z-]+):(?:(?:[ \t]*[\w-]+=[^;\n]*;)+|[^\n]*)[ \t]*(?:\r?\n)*")


@dataclass(slots=True)
class Decorations:
    """The rule, and whether it is applied. Says once in its life that it dropped something."""

    enabled: bool = True
    _told: bool = False
    _lock: Lock = field(default_factory=Lock)

    def strip(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages without headers at the beginning of their leading system messages. A system message that
        has nothing else is left out, unless it is the only message."""
        if not self.enabled:
            return tuple(messages)
        leading = list(takewhile(lambda message: message.role == "system", messages))
        stripped = [_stripped(message) for message in leading]
        if stripped == leading:
            return tuple(messages)
        kept = [new for new, old in zip(stripped, leading, strict=True) if new.content or not old.content]
        self._tell()
        return (*kept, *messages[len(leading) :]) or (stripped[0],)

    def _tell(self) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            logger.info(
                "dropped a line x-anthropic-…: before the system text, since it changes every session; "
                "--no-strip-decorations keeps such lines"
            )


def _stripped(message: Message) -> Message:
    text = message.content or ""
    while header := _HEADER.match(text):
        text = text[header.end() :]
    return message if text == (message.content or "") else replace(message, content=text)
