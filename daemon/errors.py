"""The exceptions of the daemon and the CLI, sorted by whose fault it is.

    AgentserveError
    ├── RequestError          the client's request can't be served; carries status, code, param
    │   ├── InvalidRequest        400
    │   ├── ContextLengthExceeded 400 context_length_exceeded
    │   ├── ModelNotFound         404 model_not_found
    │   ├── Conflict              409
    │   ├── BodyTooLarge          413
    │   ├── QueueFull             429 with Retry-After
    │   ├── CapsuleOverBudget     503 capsule_over_budget
    │   ├── Unavailable           503 (loading failed, draining, worker died), maybe with Retry-After
    │   └── Cancelled             499 by its id, 504 by its deadline
    ├── ConfigError           a setting, flag or environment value is wrong        exit code 2
    ├── StoreError            the model store: unknown model, bad file, wrong digest  exit code 1
    ├── PullError             a source could not be read                           exit code 1
    ├── StartError            the daemon can't start: port, lock, folders          exit code 1
    └── NotRunning            a command needs the daemon and there is none         exit code 3

Messages are one line, say what to do where something can be done, and never hold a traceback. Messages of
RequestError reach clients over HTTP and hold no path either.
"""

from __future__ import annotations

from typing import ClassVar

from ..engine.protocol import CancelReason


class AgentserveError(Exception):
    """Base of all; `exit_code` is what a command exits with when it ends on this error."""

    exit_code = 1


class RequestError(AgentserveError):
    """An error with its place in HTTP. `type` is OpenAI's error type; other dialects map the status."""

    status = 500
    code: str | None = None
    type = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.retry_after: int | None = None


class InvalidRequest(RequestError):
    """The request itself is wrong; asking again does not help."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """What `param` holds has more tokens than the model's context; both numbers are in the message."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context_length: int, param: str = "messages") -> None:
        super().__init__(
            f"This model's maximum context length is {context_length} tokens. "
            f"However, your {param} resulted in {prompt_tokens} tokens.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class NotFound(InvalidRequest):
    """Nothing has the name or id that was given."""

    status = 404


class Conflict(InvalidRequest):
    """What was asked does not go with how things are: a name is taken, is that of two, or is in use."""

    status = 409


class ModelNotFound(NotFound):
    """No model has this name; another one is never taken instead."""

    code = "model_not_found"


class BodyTooLarge(InvalidRequest):
    """The body is over the setting `max_body`."""

    status = 413
    code = "request_too_large"


class QueueFull(RequestError):
    """As many requests wait as may; `retry_after` is in seconds."""

    status = 429
    code = "queue_full"
    type = "rate_limit_error"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CapsuleOverBudget(RequestError):
    """A pin takes more than is free of the setting `capsule_budget`; both numbers, in bytes, are in the message."""

    status = 503
    code = "capsule_over_budget"

    def __init__(self, message: str, wanted_bytes: int, free_bytes: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes


class Unavailable(RequestError):
    """The model can't be reached now; `retry_after`, in seconds, is set where asking again may help."""

    status = 503
    code = "inference_unavailable"
    type = "server_error"

    def __init__(self, message: str, *, code: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Cancelled(RequestError):
    """Somebody ended the request before its answer was whole; `reason` says who. A shutdown is Unavailable.

    499 is what proxies log for a client that went away; no SDK sends such a request again.
    """

    TABLE: ClassVar[dict[CancelReason, tuple[int, str, str]]] = {
        CancelReason.CLIENT: (499, "client_disconnected", "The client closed its connection"),
        CancelReason.API: (499, "request_cancelled", "The request was cancelled by its id"),
        CancelReason.DEADLINE: (504, "timeout", "The request took longer than its deadline allows"),
        CancelReason.SLOW_READER: (503, "slow_reader", "The client reads its answer too slowly"),
    }

    def __init__(self, reason: CancelReason) -> None:
        status, code, message = self.TABLE[reason]
        super().__init__(message, code=code)
        self.status = status
        self.reason = reason


class ConfigError(AgentserveError):
    """A setting is wrong; the message names its source, its name and its value."""

    exit_code = 2


class StoreError(AgentserveError):
    """The model store can't do what was asked: a bad file, a wrong digest, a full disk."""


class PullError(AgentserveError):
    """A model could not be fetched from where it comes from."""


class StartError(AgentserveError):
    """The daemon can't start, or can't be reached by its process id."""


class NotRunning(AgentserveError):
    """A command needs the daemon, and none runs."""

    exit_code = 3
