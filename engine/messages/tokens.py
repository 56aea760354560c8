"""Questions about the text and the tokens of prompts; `protocol` has them too.

The intake thread answers them, so none of them waits for a step of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from .request import GenerateRequest

# ---- daemon → worker


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Asks for the prompt that `request` would have; its sampling and limits mean nothing. A bare prompt of text gets
    the model's own first and last tokens only with `add_special`. Answered by Tokenized or TokensRefused."""

    request_id: str
    request: GenerateRequest
    add_special: bool = True


@dataclass(frozen=True, slots=True)
class Detokenize:
    """Asks for the text of tokens, with control tokens spelled out unless `skip_special`. Answered by Detokenized or
    TokensRefused."""

    request_id: str
    tokens: tuple[int, ...]
    skip_special: bool = False


TokenCommand = Tokenize | Detokenize


# ---- worker → daemon


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a prompt, and the text that each spells; bytes that are no UTF-8 are U+FFFD in `pieces`.

    `text` is what the template made of a conversation, None for a bare prompt. The first `stable_tokens` are the system
    text and the tools; the last user turn begins at `turn_start`. From `canonical` on the tokens may differ from
    those of the text, because replies keep the tokens that they were generated with; None where nothing differs.
    """

    request_id: str
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    text: str | None = None
    stable_tokens: int = 0
    turn_start: int = 0
    canonical: int | None = None


@dataclass(frozen=True, slots=True)
class Detokenized:
    request_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TokensRefused:
    """`status` is the HTTP status, `param` the field at fault."""

    request_id: str
    status: int
    code: str
    message: str
    param: str | None = None


TokenAnswer = Tokenized | Detokenized | TokensRefused
