"""opencode, with the provider for OpenAI-compatible servers that it brings along."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent import SMALL_REPLY, Agent, Place, call_order, result_missing
from installing import npm_packages
from repository import NOTE, NOTE_TEXT

VERSION = "1.18.33"


def _install(folder: Path) -> Path:
    return npm_packages(folder, f"opencode-ai@{VERSION}")


def _settle(place: Place) -> dict[str, str]:
    limit = {"context": 8192, "output": SMALL_REPLY} if place.small else {"context": 131072, "output": 4096}
    name = f"agentserve/{place.model}"
    place.write(
        ".config/opencode/opencode.json",
        {
            "model": name,
            "small_model": name,
            "share": "disabled",
            "autoupdate": False,
            "provider": {
                "agentserve": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": place.base_url, "apiKey": "local"},
                    "models": {place.model: {"limit": limit, "temperature": True}},
                }
            },
            # Greedy, so that two runs differ in little.
            "agent": {"build": {"temperature": 0}},
        },
    )
    return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}


def _command(place: Place, prompt: str, goes_on: bool) -> Sequence[str]:
    # It puts an argument with blanks into quotes, and backslashes before those inside.
    return [str(place.programs / "opencode"), "run", *(["--continue"] if goes_on else []), *prompt.split(" ")]


def _order(place: Place) -> str:
    return call_order("read", {"filePath": str(place.repository / NOTE)})


def _unmet(place: Place, bodies: Sequence[Any]) -> str | None:
    return result_missing(bodies, NOTE_TEXT)


OPENCODE = Agent("opencode", VERSION, _install, _settle, _command, _order, _unmet)
