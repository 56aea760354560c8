"""The wire objects of one answer, as far as OpenAI's generating routes have them in common.

A stream is the frames of the beginning, frames of the answer, for each choice a frame with its finish reason, the last
one with the `agentserve` block, the usage frame if asked for, and `[DONE]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from ...engine.protocol import Delta, FinishReason, ModelInfo
from ..generation.choices import Choices, Piece
from ..http.streams import Headers
from ..records.ledger import Entry
from ..records.records import progress_object, running
from .answer_block import record, usage
from .deltas import joined

_DONE = b"data: [DONE]\n\n"


class Answer(NamedTuple):
    """What is known of an answer before its first word. `created` is in unix seconds."""

    model: str
    info: ModelInfo
    created: int
    choices: Choices


class Reply(ABC):
    """Builds the objects of one answer; a dialect says how it puts a choice."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._told_ends: set[int] = set()

    # ---- what a dialect decides

    @abstractmethod
    def choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        """A whole choice."""

    @abstractmethod
    def first_frames(self) -> bytes:
        """The frames before the first word."""

    @abstractmethod
    def piece(self, index: int, delta: Delta) -> bytes:
        """The frame of a piece of a choice."""

    @abstractmethod
    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        """What the last frame of a choice says of it."""

    @abstractmethod
    def silence(self, index: int) -> dict[str, Any]:
        """A choice that says nothing new."""

    # ---- what all have in common

    def headers(self) -> Headers:
        """Headers about the execution, as far as it is known by now."""
        device, generation = self.answer.info.device, self.answer.choices.whole
        pairs = [
            ("X-AgentServe-Device", device),
            ("X-AgentServe-Execution-Device", device),
            ("X-AgentServe-Routed-Device", device),
            ("X-AgentServe-Route-Reason", "single_engine_runtime"),
        ]
        if accepted := generation.accepted:
            pairs.append(("X-AgentServe-Token-Count", str(accepted.prompt_tokens)))
            pairs.append(("X-AgentServe-Queue-Position", str(accepted.queue_position)))
        if started := generation.started:
            pairs.append(("X-AgentServe-Prefix-Action", started.prefix_action))
            pairs.append(("X-AgentServe-Cached-Tokens", str(started.cached_tokens)))
        return pairs

    def whole(self, pieces: Iterable[Piece]) -> bytes:
        """The whole answer as one object."""
        answers: list[list[Delta]] = [[] for _ in self.answer.choices.parts]
        for index, deltas in pieces:
            answers[index] += deltas
        body = self.envelope(self.kind, [self.choice(i, deltas) for i, deltas in enumerate(answers)])
        return msgspec.json.encode(body | self._usage() | self._record())

    def frames(self, pieces: Iterable[Piece]) -> bytes:
        """The frames of the next pieces, and of the ends of choices; the last end is told by `last_frames`."""
        frames = [self.piece(index, delta) for index, deltas in pieces for delta in joined(deltas)]
        if not self.answer.choices.are_finished:
            frames += [self.chunk(ending) for ending in self._endings()]
        return b"".join(frames)

    def life_sign(self, entry: Entry | None) -> bytes:
        """A frame of a choice that goes on, with nothing new; with `entry`, how far its request is."""
        parts = self.answer.choices.parts
        index = next(index for index, part in enumerate(parts) if part.finished is None)
        envelope = self.envelope(self.chunk_kind, [self.silence(index)])
        if entry is not None:
            envelope["agentserve"] = {"progress": progress_object(running(entry))}
        return frame(envelope)

    def last_frames(self, include_usage: bool) -> bytes:
        """All frames that follow the last text."""
        *others, last = self._endings()
        frames = [self.chunk(ending) for ending in others]
        frames.append(frame(self.envelope(self.chunk_kind, [last]) | self._record()))
        if include_usage:
            frames.append(frame(self.envelope(self.chunk_kind, []) | self._usage()))
        return b"".join(frames) + _DONE

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """A frame of one choice."""
        return frame(self.envelope(self.chunk_kind, [choice]))

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """What all objects of an answer have."""
        return {
            "id": self.answer.choices.requests[0].request_id,
            "object": kind,
            "created": self.answer.created,
            "model": self.answer.model,
            "system_fingerprint": self.answer.info.fingerprint,
            "choices": choices,
        }

    def _endings(self) -> Iterator[dict[str, Any]]:
        """The ends that have come and were not told."""
        for index, part in enumerate(self.answer.choices.parts):
            if part.finished is not None and index not in self._told_ends:
                self._told_ends.add(index)
                yield self.ending(index, part.finished.finish_reason)

    def _usage(self) -> dict[str, Any]:
        finished = self.answer.choices.whole.finished
        assert finished is not None
        return {"usage": usage(finished)}

    def _record(self) -> dict[str, Any]:
        return {"agentserve": record(self.answer.choices.whole)}


def frame(value: Mapping[str, Any]) -> bytes:
    """An object as a server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(value)
