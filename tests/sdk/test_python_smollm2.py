"""The official Python SDK against a daemon with real models."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest
from daemon_process import DaemonProcess
from openai import OpenAI
from openai.types.chat import ChatCompletion
from sdk_answers import Trip, conforms, folded, whole
from sdk_requests import SMOLLM2, asked

pytestmark = pytest.mark.model
Ask = Callable[[str], ChatCompletion]
EMBEDDED = ["A fox runs.", "Ein Fuchs läuft.", "A fox runs."]


@pytest.fixture
def client(connect: Callable[..., OpenAI], real: DaemonProcess) -> OpenAI:
    return connect(real)


@pytest.fixture(scope="module")
def answers() -> dict[str, ChatCompletion]:
    """Whole answers to SMOLLM2 that have been asked for."""
    return {}


@pytest.fixture
def answer(client: OpenAI, answers: dict[str, ChatCompletion]) -> Callable[[str], ChatCompletion]:
    """Asks for a whole answer by its name, once for all tests."""

    def ask(name: str) -> ChatCompletion:
        if name not in answers:
            answers[name] = client.chat.completions.create(**SMOLLM2[name])
        return answers[name]

    return ask


@pytest.mark.parametrize("name", SMOLLM2)
def test_a_stream_adds_up_to_the_whole_answer(client: OpenAI, answer: Ask, name: str) -> None:
    body, told = SMOLLM2[name], whole(answer(name))
    assert folded(client.chat.completions.create(**body, stream=True), body.get("n", 1)) == told
    assert all(one.text or one.calls for one in told)
    conforms(answer(name))


def test_tools_that_the_model_does_not_use_change_nothing(answer: Ask) -> None:
    (choice,) = answer("a tool that is not used").choices
    assert choice.message.content
    assert choice.message.tool_calls is None


def test_calls_that_are_demanded_fit_their_schemas(answer: Ask) -> None:
    for name, tool in (("required call", "get_weather"), ("named call", "paint")):
        (one,) = whole(answer(name))
        ((called, arguments),) = one.calls
        assert (called, one.text, one.finish_reason) == (tool, "", "tool_calls")
        found = json.loads(arguments)
        if tool == "paint":
            assert found["colour"] in ("red", "blue")
        else:
            assert set(found) == {"city", "days"}
            assert found["days"] in (1, 2, 3)


def test_the_sdk_parses_what_its_own_schema_asked_for(client: OpenAI) -> None:
    body = asked("I go to Oslo for three days.", max_tokens=80)
    parsed = client.chat.completions.parse(**body, response_format=Trip).choices[0].message.parsed
    assert isinstance(parsed, Trip)
    with client.chat.completions.stream(**body, response_format=Trip) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed


def test_three_choices_are_different_answers(answer: Ask) -> None:
    assert len({one.text for one in whole(answer("three choices"))}) == 3


def test_logprobs_spell_the_text_and_the_likeliest_token_is_taken(answer: Ask) -> None:
    (choice,) = answer("logprobs").choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        likely = [other.logprob for other in entry.top_logprobs]
        assert len(likely) == 3
        assert likely == sorted(likely, reverse=True)
        assert likely[0] <= 0


def test_a_bare_prompt_is_completed_whole_and_streamed(client: OpenAI) -> None:
    body: dict[str, Any] = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 2}
    body |= {"temperature": 0, "logprobs": 2}
    (choice,) = client.completions.create(**body).choices
    assert choice.text == " Paris."
    pieces = [part for chunk in client.completions.create(**body, stream=True) for part in chunk.choices]
    assert "".join(part.text for part in pieces) == choice.text
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    streamed = [token for part in pieces if part.logprobs for token in part.logprobs.tokens or ()]
    assert streamed == choice.logprobs.tokens


def test_vectors_are_the_same_as_floats_and_as_base64(client: OpenAI) -> None:
    # The SDK asks for base64 where nothing is said, and decodes it.
    decoded = client.embeddings.create(model="all-minilm", input=EMBEDDED)
    plain = client.embeddings.create(
        model="all-minilm", input=EMBEDDED, encoding_format="float", dimensions=384
    )
    packed = client.embeddings.create(model="all-minilm", input=EMBEDDED, encoding_format="base64")
    conforms(plain)
    rows = np.array([one.embedding for one in plain.data], "<f4")
    assert rows.shape == (3, 384)
    np.testing.assert_array_equal(rows, np.array([one.embedding for one in decoded.data], np.float32))
    # What was asked for by name is left as it came.
    texts = [str(one.embedding) for one in packed.data]
    np.testing.assert_array_equal(rows, [np.frombuffer(base64.b64decode(text), "<f4") for text in texts])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(rows[0], rows[2])
    assert rows[0] @ rows[1] < 0.99
    assert [one.index for one in decoded.data] == [0, 1, 2]
    assert (decoded.object, decoded.data[0].object) == ("list", "embedding")
    assert decoded.model.startswith("all-minilm:")
    assert decoded.usage.prompt_tokens == decoded.usage.total_tokens > 0


def test_errors_of_embeddings_are_typed(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="must not be empty"):
        client.embeddings.create(model="all-minilm", input="")
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.embeddings.create(model="nobody", input="dog")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="smollm2", input="dog")
    assert wrong.value.code == "invalid_embedding_model"


def test_a_prompt_over_the_context_is_a_bad_request_with_both_numbers(client: OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens") as caught:
            client.chat.completions.create(**asked("word " * 3000), stream=stream)
        assert caught.value.code == "context_length_exceeded"


def test_each_model_is_listed_and_found_by_each_of_its_names(client: OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert {name.partition(":")[0] for name in listed} >= {"smollm2", "all-minilm"}
    for name, model in listed.items():
        conforms(model)
        assert client.models.retrieve(name) == model
    assert client.models.retrieve("smollm2").id in listed
