"""The messages about sessions that name no other message; `protocol` has them all.

A session is a conversation that the worker remembers: its tokens and what happened to it last. Its id is scoped by
the namespace. None of these messages waits for a running request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .prefix import PrefixAction

SessionTier = Literal["pool", "disk", "part", "lost"]


# ---- daemon → worker


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Asks for the sessions of a namespace, or of all for None; only those of one id if that is given.
    Answered by SessionList."""

    request_id: str
    namespace: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class ForkSession:
    """Makes a new session of the same tokens, called `new_id` or, for None, by an id of the worker's choice.

    A session with a running request is forked as it was before that. Answered by SessionDone with the new one, or
    SessionRefused: 404 `session_not_found`, 409 `session_exists`.
    """

    request_id: str
    session_id: str
    namespace: str = ""
    new_id: str | None = None


@dataclass(frozen=True, slots=True)
class TruncateSession:
    """Cuts a session to its first `tokens` tokens, or takes back its last `drop_turns` user turns and what followed
    them; exactly one of the two is given.

    Answered by SessionDone, or SessionRefused: 404 `session_not_found`, 409 `session_busy`, 400 `invalid_value` for
    more than there is.
    """

    request_id: str
    session_id: str
    namespace: str = ""
    tokens: int | None = None
    drop_turns: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteSession:
    """Forgets a session. Answered by SessionDone with what it was, or SessionRefused: 404 or 409 as above."""

    request_id: str
    session_id: str
    namespace: str = ""


SessionCommand = ListSessions | ForkSession | TruncateSession | DeleteSession


# ---- worker → daemon


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session. `bytes` is what its tokens take in the pool, in whole blocks, some of which others may share.

    Of its whole blocks `pool_tokens` tokens are in the pool now, without a gap from the first on. Its `tier` is where
    a request that continues it finds them: all in the pool, all there and on disk, a part of them, or none. `turns`
    counts the user turns whose beginning is known, `hits` the requests that continued it, `running` those that still
    do. `last_action` is that of its last request, `fork` when it was made by one, `truncate` when it was cut since.
    Times are unix seconds.
    """

    id: str
    namespace: str
    tokens: int
    bytes: int
    tier: SessionTier
    pool_tokens: int
    last_action: PrefixAction
    turns: int
    hits: int
    running: int
    created: float
    last_used: float


@dataclass(frozen=True, slots=True)
class SessionList:
    """The sessions that were asked for, the latest used first."""

    request_id: str
    sessions: tuple[SessionInfo, ...]


@dataclass(frozen=True, slots=True)
class SessionDone:
    """What was asked for is done; `session` is what it came to, or, where it was forgotten, what it was."""

    request_id: str
    session: SessionInfo


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """Nothing was changed. `status` is the HTTP status, `param` the field at fault."""

    request_id: str
    status: int
    code: str
    message: str
    param: str | None = None


SessionAnswer = SessionList | SessionDone | SessionRefused
