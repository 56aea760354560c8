"""Qwen Code. It needs Node 22, which is installed along with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent import SMALL_REPLY, Agent, Place, call_order, result_missing
from installing import npm_packages
from repository import NOTE, NOTE_TEXT

VERSION = "0.24.4"
_NODE = "22.23.3"
_SYSTEM_TEXT = "You are a coding assistant. Answer briefly. Read and change files with the tools.\n"


def _install(folder: Path) -> Path:
    return npm_packages(folder, f"@qwen-code/qwen-code@{VERSION}", f"node@{_NODE}")


def _settle(place: Place) -> dict[str, str]:
    # Greedy, so that two runs differ in little.
    generation: dict[str, Any] = {"samplingParams": {"temperature": 0}}
    settings: dict[str, Any] = {
        "general": {"enableAutoUpdate": False},
        "telemetry": {"enabled": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": place.model, "generationConfig": generation},
    }
    environment = {
        "OPENAI_BASE_URL": place.base_url,
        "OPENAI_API_KEY": "local",
        "OPENAI_MODEL": place.model,
    }
    if place.small:
        # Its own system text and the reminders behind it are 8,215 tokens of SmolLM2's.
        generation |= {"contextWindowSize": 8192}
        generation["samplingParams"] |= {"max_tokens": SMALL_REPLY}
        settings["memory"] = {"enableManagedAutoMemory": False}
        environment["QWEN_SYSTEM_MD"] = str(place.write(".qwen/system.md", _SYSTEM_TEXT))
    place.write(".qwen/settings.json", settings)
    return environment


def _command(place: Place, prompt: str, goes_on: bool) -> Sequence[str]:
    return [str(place.programs / "qwen"), *(["--continue"] if goes_on else []), "--prompt", prompt]


def _order(place: Place) -> str:
    return call_order("read_file", {"file_path": str(place.repository / NOTE)})


def _unmet(place: Place, bodies: Sequence[Any]) -> str | None:
    return result_missing(bodies, NOTE_TEXT)


QWEN_CODE = Agent("Qwen Code", VERSION, _install, _settle, _command, _order, _unmet)
