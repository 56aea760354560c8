"""Tools with a real model, whose template knows none: what comes is text, or calls where they are demanded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agentserve.daemon.paths import Paths, resolve_paths

pytestmark = pytest.mark.model
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ASKED: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "How is the weather in Oslo over the next 3 days?"}],
    "tools": [WEATHER],
    "temperature": 0,
    "max_tokens": 60,
}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Folders of a test's own, and the store that has the model."""
    return resolve_paths(
        {"AGENTSERVE_HOME": str(tmp_path), "AGENTSERVE_MODELS": os.environ["AGENTSERVE_MODELS"]}
    )


@pytest.fixture
def client(smollm2: Path, serve: Callable[..., Any]) -> Iterator[openai.OpenAI]:
    # Exact: the second of two equal requests finds its prompt computed.
    live = serve(
        mock=False, model="smollm2", tool_formats={"smollm2": "hermes"}, max_context=2048, exact=True
    )
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0, timeout=60) as sdk:
        yield sdk


def test_tools_that_the_model_does_not_use_change_nothing(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED).choices[0]
    chunks = list(client.chat.completions.create(**ASKED, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.message.content == text != ""
    assert whole.message.tool_calls is None


def test_a_call_that_is_demanded_fits_its_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, tool_choice="required", parallel_tool_calls=False)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "days"}
    assert isinstance(arguments["days"], int)
