"""Questions to the workers that are loaded, and their refusals as errors of HTTP. Nothing here loads a model."""

from __future__ import annotations

import uuid

from ...engine.messages.sessions import SessionDone, SessionList, SessionRefused
from ...engine.protocol import (
    Detokenized,
    Failed,
    PinAnswer,
    PinCommand,
    PinDone,
    PinList,
    PinRefused,
    SessionAnswer,
    SessionCommand,
    TokenAnswer,
    TokenCommand,
    Tokenized,
    TokensRefused,
    Unpinned,
)
from ..errors import CapsuleOverBudget, InvalidRequest, RequestError
from ..generation.generation import to_error
from ..workers.lifecycle import State
from ..workers.router import Router
from ..workers.supervisor import Supervisor

Command = PinCommand | SessionCommand | TokenCommand
Answer = PinAnswer | SessionAnswer | TokenAnswer
Refusal = PinRefused | SessionRefused | TokensRefused


def new_id(kind: str) -> str:
    """A request id for a question of this kind."""
    return f"{kind}-{uuid.uuid4().hex}"


async def ask(worker: Supervisor, command: Command) -> Answer:
    """What a ready worker answers. Raises RequestError when it refuses, fails or is stopped over it."""
    with worker.ask(command) as channel:
        while True:
            for event in await channel.receive():
                match event:
                    case PinDone() | PinList() | Unpinned() | SessionList() | SessionDone():
                        return event
                    case Tokenized() | Detokenized():
                        return event
                    case PinRefused() | SessionRefused() | TokensRefused():
                        raise refusal_error(event)
                    case Failed():
                        raise to_error(event)


async def loaded_workers(router: Router, model: str | None) -> list[Supervisor]:
    """The workers that are ready, or the one of a model. Raises ModelNotFound for a model that does not exist."""
    wanted = None if model is None else (await router.find(model)).name
    return [
        worker
        for worker in router.supervisors()
        if worker.state is State.READY and wanted in (None, worker.load.name)
    ]


def refusal_error(refusal: Refusal) -> RequestError:
    """The error that stands for a refusal."""
    if isinstance(refusal, PinRefused) and refusal.wanted_bytes is not None:
        return CapsuleOverBudget(
            refusal.message, refusal.wanted_bytes, refusal.free_bytes or 0, refusal.param
        )
    kind = InvalidRequest if refusal.status < 500 else RequestError
    error = kind(refusal.message, param=refusal.param, code=refusal.code)
    error.status = refusal.status
    return error
