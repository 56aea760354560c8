"""The messages about embeddings that name no other message; `protocol` has them all.

    Embed   →   Rejected, or Accepted, Started, and then Embedded and Finished, or Finished (cancelled), or Failed

Started says `exact` when every vector was remembered, else `rebuild`, and how many tokens need not be computed.
"""

from __future__ import annotations

from dataclasses import dataclass

EmbeddingInput = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embed:
    """Asks for one vector for each of `inputs`, which are texts or the model's own tokens.

    An input that is longer than the context is cut with `truncate`, and else refused: 400 `context_length_exceeded`.
    """

    request_id: str
    inputs: tuple[EmbeddingInput, ...]
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors in the order of the inputs: little-endian float32 [inputs, dimensions], one behind the other."""

    request_id: str
    dimensions: int
    data: bytes
