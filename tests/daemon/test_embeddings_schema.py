"""What an embedding request may ask for, and which limit each refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agentserve.daemon.errors import InvalidRequest
from agentserve.daemon.openai.embeddings_schema import EmbeddingsCall, check_dimensions, parse_embeddings


def parse(**fields: Any) -> EmbeddingsCall:
    return parse_embeddings(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("one", ("one",)),
        (["one"], ("one",)),
        (["one", "two", "one"], ("one", "two", "one")),
        ([7, 8], ((7, 8),)),
        ([[7, 8], [9]], ((7, 8), (9,))),
        (" ", (" ",)),
        (["x"] * 128, ("x",) * 128),
        ("x" * 8192, ("x" * 8192,)),
        (["x" * 8192] * 8, ("x" * 8192,) * 8),
    ],
)
def test_every_shape_of_input_is_a_list_of_texts_or_tokens(given: Any, inputs: tuple[Any, ...]) -> None:
    assert parse(input=given, model="m").inputs == inputs


def test_what_is_not_said_is_the_servers_choice() -> None:
    assert parse(input="a") == EmbeddingsCall(None, ("a",), "float", None, False)
    nothing = dict.fromkeys(("model", "encoding_format", "dimensions", "truncate", "user"))
    assert parse(input="a", **nothing) == parse(input="a")


def test_everything_can_be_said() -> None:
    call = parse(
        input="a", model="m", encoding_format="base64", dimensions=8, truncate=True, user="me", more=1
    )
    assert call == EmbeddingsCall("m", ("a",), "base64", 8, True)


@pytest.mark.parametrize(
    ("fields", "status", "code", "param", "message"),
    [
        ({}, 400, "missing_required_parameter", "input", "required"),
        ({"input": None}, 400, "invalid_type", "input", "got null"),
        ({"input": 5}, 400, "invalid_type", "input", "got an integer"),
        ({"input": [1.5]}, 400, "invalid_type", "input[0]", "got a number"),
        ({"input": [["a"]]}, 400, "invalid_type", "input[0][0]", "got a string"),
        ({"input": ["a", 5]}, 400, "invalid_type", "input", "can't be mixed"),
        ({"input": ["a", [5]]}, 400, "invalid_type", "input", "can't be mixed"),
        ({"input": ""}, 400, "empty_input", "input", "must not be empty"),
        ({"input": []}, 400, "empty_input", "input", "must not be empty"),
        ({"input": [[]]}, 400, "empty_input", "input", "must not be empty"),
        ({"input": ["a", ""]}, 400, "empty_input", "input[1]", "must not be empty"),
        (
            {"input": ["a"] * 129},
            400,
            "embedding_batch_too_large",
            "input",
            "at most 128 texts in one request, got 129",
        ),
        (
            {"input": "a" * 8193},
            413,
            "embedding_input_too_large",
            "input",
            "at most 8192 characters or tokens, got 8193",
        ),
        ({"input": ["b", "é" * 9000]}, 413, "embedding_input_too_large", "input[1]", "got 9000"),
        ({"input": [1] * 8193}, 413, "embedding_input_too_large", "input", "got 8193"),
        (
            {"input": ["a" * 8192] * 9},
            413,
            "embedding_request_too_large",
            "input",
            "at most 65536 .* got 73728",
        ),
        (
            {"input": "a", "encoding_format": "int8"},
            400,
            "unsupported_encoding_format",
            "encoding_format",
            "'int8'",
        ),
        ({"input": "a", "model": " "}, 400, "invalid_value", "model", "must not be empty"),
        ({"input": "a", "dimensions": 0}, 400, "invalid_value", "dimensions", "at least 1, got 0"),
        ({"input": "a", "dimensions": "8"}, 400, "invalid_type", "dimensions", "got a string"),
    ],
)
def test_a_wrong_request_is_told_its_field_and_the_limit(
    fields: dict[str, Any], status: int, code: str, param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (status, code, param)


def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        parse_embeddings(b'{"input": "a"')


def test_only_the_models_own_length_can_be_had() -> None:
    check_dimensions(None, "m", 8)
    check_dimensions(8, "m", 8)
    with pytest.raises(InvalidRequest, match="m gives 8 dimensions and can't give 4"):
        check_dimensions(4, "m", 8)
