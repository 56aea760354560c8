"""Bare prompts and several choices with a real model, in exact mode: shared blocks change no token."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from agentserve.daemon.paths import Paths, resolve_paths

pytestmark = pytest.mark.model
STORY = {"role": "user", "content": "Tell me of a fox, a dog and a rainy day. " * 6}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Folders of a test's own, and the store that has the model."""
    return resolve_paths(
        {"AGENTSERVE_HOME": str(tmp_path), "AGENTSERVE_MODELS": os.environ["AGENTSERVE_MODELS"]}
    )


@pytest.fixture
def client(smollm2: Path, serve: Callable[..., Any]) -> Iterator[openai.OpenAI]:
    live = serve(mock=False, model="smollm2", unknown_model="default", max_context=2048, exact=True)
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0, timeout=60) as sdk:
        yield sdk


def test_choices_are_those_of_their_seeds_and_share_the_prompt(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "messages": [STORY], "temperature": 1, "max_tokens": 12}
    several = client.chat.completions.create(**asked, n=3, seed=11)
    alone = [client.chat.completions.create(**asked, seed=11 + choice) for choice in range(3)]
    texts = [choice.message.content for choice in several.choices]
    assert texts == [one.choices[0].message.content for one in alone]
    assert len(set(texts)) == 3
    assert several.usage is not None
    assert alone[0].usage is not None
    assert several.usage.prompt_tokens == alone[0].usage.prompt_tokens


def test_a_bare_prompt_is_continued_and_its_tokens_are_those_that_are_told(client: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    told = client.post("/tokenize", body={"prompt": prompt}, cast_to=httpx.Response).json()["tokens"]
    # Clients have names of their own for models; the settings map them to the default one.
    for given in (prompt, told):
        answer = client.completions.create(model="gpt-5-mini", prompt=given, max_tokens=2, temperature=0)
        assert answer.choices[0].text == " Paris."
        assert answer.model.startswith("smollm2")
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(told)
