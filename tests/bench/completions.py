"""Streams chat completions from any OpenAI-compatible server and notes when and at what price they came."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT_S = 600.0


class ServerError(Exception):
    """The server refused a request or answered with something else than the protocol has."""


@dataclass(frozen=True)
class Answer:
    """One answer. `prefilled` are the tokens of the prompt that the server computed, None where it does not say.

    `first_s` is the time to the first piece of text, or to the end when there was none.
    """

    text: str
    first_s: float
    total_s: float
    prompt_tokens: int
    completion_tokens: int
    prefilled: int | None


class Server:
    """A server's chat completions; any thread may ask."""

    def __init__(self, url: str, model: str | None) -> None:
        """Takes the first model that the server lists when none is named. Raises ServerError and HTTPError."""
        self._client = httpx.Client(base_url=url.rstrip("/"), timeout=TIMEOUT_S)
        self.model = model or self._first_model()

    def ask(self, body: dict[str, Any]) -> Answer:
        """Streams one greedy completion to its end. Raises ServerError and HTTPError."""
        whole = {
            "model": self.model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        begun, first, texts = time.perf_counter(), None, list[str]()
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        for frame in self._frames(whole):
            usage = frame.get("usage") or usage
            timings = frame.get("timings") or timings
            text = "".join(choice["delta"].get("content") or "" for choice in frame.get("choices", ()))
            if text:
                first = first or time.perf_counter() - begun
                texts.append(text)
        total = time.perf_counter() - begun
        if not usage:
            raise ServerError("the server reports no usage in its streams")
        return Answer(
            text="".join(texts),
            first_s=first or total,
            total_s=total,
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            prefilled=_prefilled(usage, timings),
        )

    def await_ready(self, seconds: float) -> None:
        """Returns when the server answers again. Raises ServerError when it does not in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self._client.get("/v1/models").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise ServerError(f"the server does not answer {seconds:g} s after its restart")

    def _first_model(self) -> str:
        models = self._client.get("/v1/models").raise_for_status().json()["data"]
        if not models:
            raise ServerError("the server has no model")
        return str(models[0]["id"])

    def _frames(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if not response.is_success:
                raise ServerError(f"{response.status_code}: {response.read().decode(errors='replace')[:500]}")
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    frame: dict[str, Any] = json.loads(line[6:])
                    if "error" in frame:
                        raise ServerError(f"in a stream: {frame['error']}")
                    yield frame


def _prefilled(usage: dict[str, Any], timings: dict[str, Any]) -> int | None:
    """OpenAI's cached tokens; llama.cpp's count of the prompt tokens that it computed where it gives one."""
    if "prompt_n" in timings:
        return int(timings["prompt_n"])
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return None if cached is None else int(usage["prompt_tokens"]) - int(cached)
