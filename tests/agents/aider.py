"""aider in OpenAI mode. It calls no tools: replies hold whole files, and each edit becomes a commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent import SMALL_REPLY, Agent, Place
from installing import pip_packages
from repository import MODULE, commits

VERSION = "0.86.2"
_EDITED = "def farewell(name: str) -> str:\n    return f'Goodbye, {name}'\n"
_QUIET = (
    "--analytics-disable",
    "--disable-playwright",
    "--no-check-update",
    "--no-gitignore",
    "--no-pretty",
    "--no-show-release-notes",
    "--yes-always",
)


def _install(folder: Path) -> Path:
    return pip_packages(folder, f"aider-chat=={VERSION}")


def _settle(place: Place) -> dict[str, str]:
    context, reply = (8192, SMALL_REPLY) if place.small else (131072, 4096)
    facts = {"max_input_tokens": context, "max_output_tokens": reply, "litellm_provider": "openai"}
    free = {"input_cost_per_token": 0, "output_cost_per_token": 0, "mode": "chat"}
    place.write(".aider.model.metadata.json", {f"openai/{place.model}": {**facts, **free}})
    # A list of prices would be fetched else.
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return {"OPENAI_BASE_URL": place.base_url, "OPENAI_API_KEY": "local", **offline}


def _command(place: Place, prompt: str, goes_on: bool) -> Sequence[str]:
    history = ["--restore-chat-history"] if goes_on else []
    model = ["--model", f"openai/{place.model}"]
    return [str(place.programs / "aider"), *model, *_QUIET, *history, "--message", prompt, MODULE]


def _order(place: Place) -> str:
    return f"Say goodbye in place of hello. <reply>{MODULE}\n```\n{_EDITED}```\n</reply>"


def _unmet(place: Place, bodies: Sequence[Any]) -> str | None:
    if (place.repository / MODULE).read_text() != _EDITED:
        return "the file was not edited"
    if commits(place.repository) < 2:
        return "the edit was not committed"
    return None if len(bodies) > 1 else "no message for the commit was asked for"


AIDER = Agent("aider", VERSION, _install, _settle, _command, _order, _unmet)
