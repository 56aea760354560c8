"""Embeddings over real sockets and a real worker."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from agentserve.daemon.errors import Unavailable
from agentserve.daemon.paths import Paths
from agentserve.daemon.store.registry import ModelStore
from agentserve.daemon.workers.open_requests import OpenRequests
from agentserve.daemon.workers.process import Command
from agentserve.engine.protocol import Accepted, Embed, Started
from encoder_store import put_encoder
from tiny_encoders import CONTEXT, DIMENSIONS, VOCABULARY, make_tiny_encoder

Serve = Callable[..., Any]
Put = Callable[[ModelStore, str, bytes], None]
MODEL = "tiny-encoder:test"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder().write(tmp_path_factory.mktemp("encoder") / "tiny.gguf")


@pytest.fixture
def start(serve: Serve, paths: Paths, tiny: Path, put: Put) -> Serve:
    """Starts daemons with a tiny encoder, loaded, and a file that is taken for a chat model."""
    store = ModelStore(paths.models)
    put_encoder(store, tiny, MODEL, "tiny")
    put(store, "chat", b"no engine looks at this")
    return partial(serve, mock=False, model=MODEL, embedding_model="tiny")


@pytest.fixture
def live(start: Serve) -> Any:
    return start()


def post(
    live: Any, route: str = "embeddings", headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    data = json.dumps(fields).encode()
    return httpx.post(f"{live.url}/v1/{route}", content=data, headers=headers, timeout=10)


def error(answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()["error"]
    return body


def test_the_wire_carries_little_endian_floats(live: Any) -> None:
    tokens = [VOCABULARY.index("the"), VOCABULARY.index("dog")]
    packed = post(live, input="the dog", encoding_format="base64")
    plain = post(live, input=[tokens], encoding_format="float")
    (text,) = [one["embedding"] for one in packed.json()["data"]]
    (floats,) = [one["embedding"] for one in plain.json()["data"]]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == floats
    assert packed.headers["X-AgentServe-Device"] == "CPU"
    assert packed.headers["X-AgentServe-Token-Count"] == "4"


def test_a_request_is_booked_and_what_is_remembered_is_told(live: Any) -> None:
    first, second = (post(live, input=["the dog", "a fox"]).json() for _ in range(2))
    assert [one["agentserve"]["cached_tokens"] for one in (first, second)] == [0, 8]
    refused = post(live, input="")
    assert refused.status_code == 400
    status = httpx.get(f"{live.url}/agentserve/v1/status").json()
    assert (status["requests"]["done"], status["requests"]["rejected"]) == (2, 1)
    newest = status["recent"][1]
    assert (newest["route"], newest["model"], newest["device"]) == ("/v1/embeddings", MODEL, "CPU")
    assert (newest["terminal_state"], newest["status"], newest["prompt_tokens"], newest["cached_tokens"]) == (
        "done",
        200,
        8,
        8,
    )
    assert status["recent"][0]["reason"] == "empty_input"
    worker = status["workers"][0]
    assert (worker["tokens_prefilled"], worker["tokens_reused"], worker["model"]["dimensions"]) == (8, 8, 32)


def test_what_needs_the_model_is_refused_with_its_numbers(live: Any) -> None:
    long = post(live, input=["dog", "dog " * CONTEXT])
    assert (long.status_code, error(long)["code"], error(long)["param"]) == (
        400,
        "context_length_exceeded",
        "input[1]",
    )
    assert (error(long)["n_prompt_tokens"], error(long)["n_ctx"]) == (CONTEXT + 2, CONTEXT)
    assert "your input[1] resulted in 50 tokens" in error(long)["message"]
    cut = post(live, input="dog " * CONTEXT, truncate=True)
    assert cut.json()["usage"]["prompt_tokens"] == CONTEXT
    token = post(live, input=[len(VOCABULARY)])
    assert (token.status_code, error(token)["param"]) == (400, "input")
    shorter = post(live, input="dog", dimensions=16)
    assert (shorter.status_code, error(shorter)["param"]) == (400, "dimensions")
    assert error(shorter)["message"] == f"{MODEL} gives 32 dimensions and can't give 16"


def test_a_request_for_another_device_is_refused(live: Any) -> None:
    refused = post(live, headers={"X-AgentServe-Device": "npu"}, input="dog")
    assert (refused.status_code, error(refused)["code"]) == (400, "invalid_embedding_device")
    assert post(live, headers={"X-AgentServe-Device": "cpu"}, input="dog").status_code == 200


def test_models_are_not_asked_for_what_they_can_not_do(live: Any) -> None:
    chat = post(live, "chat/completions", model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert (chat.status_code, error(chat)["code"], error(chat)["param"]) == (
        400,
        "invalid_chat_model",
        "model",
    )
    assert MODEL in error(chat)["message"]
    embed = post(live, model="chat", input="hi")
    assert (embed.status_code, error(embed)["code"], error(embed)["param"]) == (
        400,
        "invalid_embedding_model",
        "model",
    )
    unknown = post(live, model="nobody", input="hi")
    assert (unknown.status_code, error(unknown)["code"]) == (404, "model_not_found")
    # None of this loaded anything.
    assert [one["name"] for one in httpx.get(f"{live.url}/agentserve/v1/status").json()["workers"]] == [MODEL]


def test_unknown_names_can_mean_the_embedding_model(start: Serve) -> None:
    live = start(unknown_model="default")
    answer = post(live, model="text-embedding-3-small", input="dog")
    assert (answer.status_code, answer.json()["model"]) == (200, MODEL)


def test_the_list_of_models_says_what_each_can_do(live: Any) -> None:
    cards = {one["id"]: one for one in httpx.get(f"{live.url}/v1/models").json()["data"]}
    assert cards[MODEL]["capabilities"] == ["embedding"]
    assert (cards[MODEL]["dimensions"], cards[MODEL]["context_length"]) == (DIMENSIONS, CONTEXT)
    assert cards["chat:latest"]["capabilities"] == ["completion"]
    assert "dimensions" not in cards["chat:latest"]


def test_requests_at_once_get_their_own_vectors(start: Serve) -> None:
    live = start(embedding_cache_size=0)
    words = [word for word in VOCABULARY if word.isalpha() and word.isascii()]
    found: dict[str, list[float]] = {}

    def ask(word: str) -> None:
        found[word] = post(live, input=[word, "the"] * 20).json()["data"][0]["embedding"]

    threads = [threading.Thread(target=ask, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = {word: post(live, input=word).json()["data"][0]["embedding"] for word in words}
    assert found.keys() == alone.keys()
    for word in words:
        np.testing.assert_allclose(found[word], alone[word], atol=1e-5)


def test_a_request_that_takes_too_long_is_ended(start: Serve, fake: Callable[..., Command]) -> None:
    live = start(command=fake(), embed_timeout=1.0)  # this worker does not know the message
    late = post(live, input="dog")
    assert (late.status_code, error(late)["code"]) == (504, "inference_timeout")
    status = httpx.get(f"{live.url}/agentserve/v1/status").json()
    assert (status["requests"]["cancelled"], status["recent"][0]["reason"]) == (1, "deadline")


def test_a_client_that_hangs_up_is_not_waited_for(start: Serve, fake: Callable[..., Command]) -> None:
    live = start(command=fake())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{live.url}/v1/embeddings", json={"input": "dog"}, timeout=0.3)
    live.until(lambda: not live.daemon.service.ledger.active)
    status = httpx.get(f"{live.url}/agentserve/v1/status").json()
    assert (status["requests"]["cancelled"], status["recent"][0]["reason"]) == (1, "client_disconnected")


def test_texts_that_no_worker_had_begun_go_to_the_next_one() -> None:
    requests, question = OpenRequests(), Embed("e", ("dog",))
    requests.add("e", question)
    requests.deliver(Accepted("e", 3, 0, False, 0, 0.0))
    requests.fail(lambda: Unavailable("gone"), but_movable=True)
    assert requests.move() == [question]
    requests.deliver(Started("e", "rebuild", 0, None))
    requests.fail(lambda: Unavailable("gone"), but_movable=True)
    assert not requests.move()


def test_a_mock_daemon_has_no_embedding_model(serve: Serve) -> None:
    refused = post(serve(), model="reference", input="hi")
    assert (refused.status_code, error(refused)["code"]) == (400, "invalid_embedding_model")


def test_the_tokens_of_a_text_are_those_that_its_embedding_counts(live: Any) -> None:
    text = "the dog likes tea"
    told = post(live, "tokenize", model="tiny", prompt=text, return_token_strs=True).json()
    used = post(live, model="tiny", input=text).json()["usage"]["prompt_tokens"]
    assert (told["count"], told["max_model_len"], told["model"]) == (used, CONTEXT, MODEL)
    assert told["tokens"] == [VOCABULARY.index(piece) for piece in told["token_strs"]]
    assert told["token_strs"][:3] == ["[CLS]", "the", "dog"]
    bare = post(live, "tokenize", model="tiny", prompt=text, add_special_tokens=False).json()
    assert bare["tokens"] == told["tokens"][1:-1]


def test_tokens_of_an_embedding_model_do_not_become_text_again(live: Any) -> None:
    asked: dict[str, dict[str, Any]] = {
        "detokenize": {"tokens": [1]},
        "chat/render": {"messages": [{"role": "user", "content": "hi"}]},
    }
    for route, fields in asked.items():
        answer = post(live, route, model="tiny", **fields)
        assert (answer.status_code, error(answer)["code"]) == (400, "invalid_chat_model")
