"""How CLI and TUI talk to the running daemon. Light on purpose: `http.client` and msgspec, nothing else.

Errors of the daemon come back as the exceptions of `errors`, with the daemon's own text.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from .. import __version__
from .errors import AgentserveError, NotRunning, RequestError
from .instance import Instance, running_instance
from .paths import Paths
from .snapshot import RequestRecord, StatusSnapshot

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_PINS = "/agentserve/v1/pins"
_SESSIONS = "/agentserve/v1/sessions"
_REQUESTS = "/agentserve/v1/requests"
_HEADERS = {"Content-Type": "application/json", "User-Agent": f"agentserve/{__version__}"}
# The daemon sends a snapshot at least every 5 s.
_EVENTS_SILENCE_S = 30.0
_NOT_RUNNING = "agentserve is not running; start it with `agentserve up`"


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatThought:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The end of the answer: why, the token counts, and the `agentserve` block of the last frame."""

    finish_reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)


ChatEvent = ChatDelta | ChatThought | ChatEnd


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The ids of what was cancelled. `state` is set, and nothing cancelled, when the request had ended before."""

    cancelled: list[str]
    state: str | None = None


@dataclass(frozen=True, slots=True)
class _RequestPage:
    requests: list[RequestRecord]


class DaemonClient:
    """Requests to one daemon; each opens its own connection. `timeout` (seconds) bounds the short ones."""

    def __init__(self, host: str, port: int, timeout: float = 10.0) -> None:
        self.host = _WILDCARDS.get(host, host)
        self.port = port
        self.timeout = timeout
        self.instance: Instance | None = None

    @classmethod
    def discover(cls, paths: Paths, timeout: float = 10.0) -> DaemonClient:
        """The client of the daemon that runs for this user. Raises NotRunning."""
        instance = running_instance(paths)
        if instance is None:
            raise NotRunning(_NOT_RUNNING)
        client = cls(instance.host, instance.port, timeout)
        client.instance = instance
        return client

    @property
    def base_url(self) -> str:
        """What `OPENAI_BASE_URL` must be for this daemon."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"

    def status(self) -> StatusSnapshot:
        """The daemon's state now. Raises NotRunning when it can't be reached."""
        return msgspec.json.decode(self._call("GET", "/agentserve/v1/status"), type=StatusSnapshot)

    def snapshots(self) -> Iterator[StatusSnapshot]:
        """The daemon's state now and whenever it changes, until the daemon ends or the iterator is closed."""
        with self._response("GET", "/agentserve/v1/events", None, timeout=_EVENTS_SILENCE_S) as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield msgspec.json.decode(line[6:], type=StatusSnapshot)

    def requests(self, **wanted: str | int | None) -> list[RequestRecord]:
        """Records of running and ended requests, newest first.

        `wanted` are the filters of `GET /agentserve/v1/requests`: state, client, session, limit, before. Raises
        RequestError for a wrong one.
        """
        given = {key: value for key, value in wanted.items() if value is not None}
        answer = self._call("GET", f"{_REQUESTS}?{urlencode(given)}")
        return msgspec.json.decode(answer, type=_RequestPage).requests

    def cancel(self, request_id: str) -> Cancellation:
        """Cancels one request. Raises RequestError when there is none of this id."""
        return self._cancel(f"{_REQUESTS}/{quote(request_id, safe='')}")

    def cancel_all(self, session: str | None = None) -> Cancellation:
        """Cancels every running request, or those of a session."""
        wish = {"all": "true"} if session is None else {"session": session}
        return self._cancel(f"{_REQUESTS}?{urlencode(wish)}")

    def _cancel(self, path: str) -> Cancellation:
        return msgspec.json.decode(self._call("DELETE", path), type=Cancellation)

    def shutdown(self, *, drain: bool = True) -> None:
        """Asks the daemon to stop, after its running requests or at once; returns before it has stopped."""
        self._call("POST", "/agentserve/v1/shutdown", {"drain": drain})

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Pins what `wish`, a body of `POST /agentserve/v1/pins`, says; computes it first. Returns the pin.

        Raises RequestError when it is refused.
        """
        with self._response("POST", _PINS, dict(wish), timeout=None) as response:
            answer: dict[str, Any] = msgspec.json.decode(response.read())
        return answer

    def pins(self, model: str | None = None, salt: str | None = None) -> dict[str, Any]:
        """The pins of the loaded models and what they take of the budgets; None is any model or salt."""
        answer: dict[str, Any] = msgspec.json.decode(self._call("GET", _PINS + _query(model, salt)))
        return answer

    def pin_named(self, name: str, model: str | None = None, salt: str | None = None) -> dict[str, Any]:
        """One pin. Raises RequestError when there is none."""
        path = f"{_PINS}/{quote(name, safe='')}{_query(model, salt)}"
        answer: dict[str, Any] = msgspec.json.decode(self._call("GET", path))
        return answer

    def unpin(self, name: str, model: str | None = None, salt: str | None = None) -> dict[str, Any]:
        """Lets a pin go and returns what it was. Raises RequestError when there is none."""
        path = f"{_PINS}/{quote(name, safe='')}{_query(model, salt)}"
        answer: dict[str, Any] = msgspec.json.decode(self._call("DELETE", path))
        return answer

    def sessions(self, model: str | None = None, salt: str | None = None) -> dict[str, Any]:
        """The sessions of the loaded models; None is any model or salt."""
        return self._session_call("GET", "", model, salt)

    def session(self, name: str, model: str | None = None, salt: str | None = None) -> dict[str, Any]:
        """One session. Raises RequestError when there is none."""
        return self._session_call("GET", f"/{quote(name, safe='')}", model, salt)

    def fork_session(
        self, name: str, new: str | None = None, model: str | None = None, salt: str | None = None
    ) -> dict[str, Any]:
        """A second session of the same tokens, called `new` or by an id that the worker chooses; returns it."""
        path = f"/{quote(name, safe='')}/fork"
        return self._session_call("POST", path, model, salt, {"session_id": new})

    def truncate_session(
        self, name: str, wish: Mapping[str, Any], model: str | None = None, salt: str | None = None
    ) -> dict[str, Any]:
        """Cuts a session as `wish`, a body of its route `truncate`, says; returns what is left."""
        return self._session_call("POST", f"/{quote(name, safe='')}/truncate", model, salt, dict(wish))

    def delete_session(self, name: str, model: str | None = None, salt: str | None = None) -> dict[str, Any]:
        """Forgets a session and returns what it was. Raises RequestError when there is none."""
        return self._session_call("DELETE", f"/{quote(name, safe='')}", model, salt)

    def _session_call(
        self, method: str, path: str, model: str | None, salt: str | None, body: Any = None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(
            self._call(method, _SESSIONS + path + _query(model, salt), body)
        )
        return answer

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], *, model: str, **options: Any
    ) -> Generator[ChatEvent, None, None]:
        """Streams an answer: any number of ChatThought and ChatDelta, then one ChatEnd. Closing the iterator cancels it.

        `options` are fields of the OpenAI chat request, such as max_tokens; None values are left out.
        Raises RequestError when the daemon refuses or fails, AgentserveError when the stream breaks off.
        """
        body = {key: value for key, value in options.items() if value is not None}
        body |= {"model": model, "messages": list(messages), "stream": True}
        body["stream_options"] = {"include_usage": True}
        with self._response("POST", "/v1/chat/completions", body, timeout=None) as response:
            yield from _chat_events(_frames(response))

    def _call(self, method: str, path: str, body: Any = None) -> bytes:
        with self._response(method, path, body, self.timeout) as response:
            return response.read()

    @contextmanager
    def _response(
        self, method: str, path: str, body: Any, timeout: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            _connect(connection)
            payload = None if body is None else msgspec.json.encode(body)
            assert connection.sock is not None
            connection.sock.settimeout(timeout)
            connection.request(method, path, payload, _HEADERS)
            response = connection.getresponse()
            _raise_for_status(response)
            yield response
        except (http.client.HTTPException, OSError) as error:
            raise AgentserveError("The connection to agentserve broke off; see `agentserve logs`") from error
        finally:
            connection.close()


def _query(model: str | None, salt: str | None) -> str:
    given = {key: value for key, value in (("model", model), ("salt", salt)) if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except OSError:
        raise NotRunning(_NOT_RUNNING) from None


def _raise_for_status(response: http.client.HTTPResponse) -> None:
    if response.status < 400:
        return
    text = response.read().decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        failure = RequestError(error["message"], param=error["param"], code=error["code"])
    except (ValueError, KeyError, TypeError):
        failure = RequestError(text.strip() or f"HTTP status {response.status}")
    failure.status = response.status
    raise failure


def _frames(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            return
        if data:
            yield msgspec.json.decode(data)
    raise http.client.IncompleteRead(b"")


def _chat_events(frames: Iterator[dict[str, Any]]) -> Iterator[ChatEvent]:
    end: ChatEnd | None = None
    for frame in frames:
        if "error" in frame:
            raise RequestError(frame["error"]["message"], code=frame["error"]["code"])
        for choice in frame["choices"]:
            if thought := choice["delta"].get("reasoning_content"):
                yield ChatThought(thought)
            if text := choice["delta"].get("content"):
                yield ChatDelta(text)
            if reason := choice.get("finish_reason"):
                end = ChatEnd(reason, record=frame.get("agentserve", {}))
        if end and frame.get("usage"):
            end = ChatEnd(end.finish_reason, frame["usage"], end.record)
    if end is not None:
        yield end
