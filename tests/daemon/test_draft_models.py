"""A draft model as the one who runs the daemon configures it, and as its clients see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentserve.cli.status import describe
from agentserve.daemon.config import load_settings
from agentserve.daemon.errors import AgentserveError, Unavailable
from agentserve.daemon.store.registry import Arrived, ModelStore
from agentserve.daemon.workers.process import Command
from agentserve.daemon.workers.router import Router
from router_rig import routed
from scripted_model import scripted

Serve = Callable[..., Any]
Fake = Callable[..., Command]
Put = Callable[[ModelStore, str, bytes], None]

TEXT = "The quick brown fox jumps over the lazy dog; nobody has said that here before, said Zoë."
CHAT: dict[str, Any] = {
    "model": "reference",
    "messages": [{"role": "user", "content": f"say <reply>{TEXT}</reply>"}],
}


def ask(live: Any, **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/chat/completions", json=CHAT | fields, timeout=30)


def test_the_settings_name_draft_models_by_model(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[draft_models]\n"big:7b" = "small"\n')
    assert load_settings({}, {}, file).draft_models == {"big:7b": "small"}


def test_a_draft_model_is_shown_wherever_a_model_is(serve: Serve) -> None:
    live = serve(command=scripted("hermes"), max_draft_tokens=8, draft_models={"reference": "reference"})
    health = httpx.get(f"{live.url}/health").json()
    assert health["models"][0]["speculation"]["draft_model"] == "reference"
    status = httpx.get(f"{live.url}/agentserve/v1/status").json()
    assert status["workers"][0]["model"]["draft_model"]["name"] == "reference"
    lines = [text for _, text in describe(live.daemon.service.snapshot(), live.url)]
    assert any(
        line.startswith("reference drafts: 0.0 M parameters, weights 1 B, KV cache ") for line in lines
    )


@pytest.fixture
def drafting(serve: Serve) -> Any:
    """A daemon whose real worker has a model that drafts for itself in no time."""
    return serve(
        command=scripted("hermes"),
        reference_step=0.01,
        max_draft_tokens=8,
        draft_tokens=8,
        draft_models={"reference": "reference"},
    )


def test_what_it_drafts_is_counted_as_that_of_every_drafter(drafting: Any) -> None:
    answer = ask(drafting).json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    (model,) = (one for one in answer["agentserve"]["speculation"]["drafters"] if one["drafter"] == "model")
    assert model["accepted"] > 0
    assert answer["agentserve"]["speculation"]["draft_ms"] > 0
    (record,) = httpx.get(f"{drafting.url}/agentserve/v1/requests").json()["requests"]
    assert model in record["drafts"]["drafters"]
    drafting.until(lambda: drafting.daemon.service.snapshot().workers[0].drafts.steps)
    metrics = httpx.get(f"{drafting.url}/metrics").text
    assert 'agentserve_spec_attempts_total{drafter="model",model="reference"}' in metrics
    plain = ask(drafting, agentserve_draft_tokens=0).json()
    assert plain["choices"] == answer["choices"]


def test_a_model_that_can_not_draft_stops_the_start_with_the_reason(serve: Serve) -> None:
    live = serve(ready=False, max_draft_tokens=8, draft_models={"reference": "reference"})
    live.join()
    assert isinstance(live.error, AgentserveError)
    assert "reference can't draft for reference: it has recurrent state" in str(live.error)


@pytest.fixture
def store(tmp_path: Path, put: Put) -> ModelStore:
    store = ModelStore(tmp_path / "models")
    for name in ("big:7b", "small"):
        put(store, name, name.encode())
    digest = "ab" * 32
    with store.arrival(digest):
        store.staging(digest).write_bytes(b"an encoder")
        store.add(store.staging(digest), Arrived("vectors", digest, "a test", {"dimensions": 8}))
    return store


def test_names_aliases_and_tags_are_those_of_any_model(store: ModelStore, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        draft = (await router.find("large")).draft_model
        assert draft is not None
        small = store.resolve("small")
        assert (draft.name, draft.path) == ("small:latest", str(small.path))
        assert draft.digest == small.digest.removeprefix("sha256:")
        assert (await router.find("small")).draft_model is None
        async with router.hold("big:7b") as worker:
            assert worker.load.draft_model == draft

    aliases = {"large": "big:7b", "tiny": "small"}
    routed(scenario, store, fake(), aliases=aliases, draft_models={"big:7b": "tiny"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", "gone can't draft for big:7b: .*'gone'"),
        ("vectors", "vectors:latest can't draft for big:7b: vectors:latest makes embeddings"),
    ],
)
def test_a_draft_model_that_is_not_there_or_makes_embeddings_is_refused_by_name(
    store: ModelStore, fake: Fake, name: str, reason: str
) -> None:
    async def scenario(router: Router) -> None:
        with pytest.raises(Unavailable, match=reason) as caught:
            await router.find("big:7b")
        assert (caught.value.status, caught.value.code) == (503, "invalid_draft_model")
        assert str(store.root) not in caught.value.message
        await router.find("small")

    routed(scenario, store, fake(), draft_models={"big:7b": name})


def test_a_table_entry_means_nothing_where_nothing_is_drafted(store: ModelStore, fake: Fake) -> None:
    async def scenario(router: Router) -> None:
        assert (await router.find("big:7b")).draft_model is None

    routed(scenario, store, fake(), draft_models={"big:7b": "gone"}, max_draft_tokens=0)
