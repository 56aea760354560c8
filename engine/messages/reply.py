"""The pieces of a reply as the client is to see them; `protocol` has them too."""

from __future__ import annotations

from dataclasses import dataclass

TOOL_FORMATS = (
    "harmony",
    "deepseek",
    "gemma4",
    "function_gemma",
    "glm",
    "qwen3_coder",
    "hermes",
    "mistral",
    "llama3",
    "tool_code",
)
"""The names of the formats of `tool_formats.formats`, for settings."""

REASONING_FORMATS = ("think", "mistral", "gemma4", "seed")
"""The names of the formats of `reasoning`."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became certain, from `tokens` newly accepted tokens (0 when held-back text is released)."""

    request_id: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of what the model thinks before it answers, without the markers around it."""

    request_id: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call. `index` counts the calls of a reply from 0.

    The first piece of each call has its `id` and `name`, later ones have neither. All `arguments` of a call together
    are the JSON text of one object.
    """

    request_id: str
    index: int
    arguments: str
    tokens: int
    id: str | None = None
    name: str | None = None


Delta = TextDelta | ReasoningDelta | ToolCallDelta
