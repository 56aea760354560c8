"""The fields that agentserve adds to a chat request, as they are understood or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agentserve.daemon.config import load_settings
from agentserve.daemon.errors import ConfigError, InvalidRequest
from agentserve.daemon.openai.chat_schema import parse_chat
from agentserve.engine.protocol import GenerateRequest, PrefixPin

PIN_FIELDS = ("agentserve_pin_prefix", "flashrt_pin_prefix")


def parsed(**fields: Any) -> GenerateRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse_chat(json.dumps(body).encode(), "r").generate


def refused(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    return caught.value.code, caught.value.param


@pytest.mark.parametrize("field", PIN_FIELDS)
@pytest.mark.parametrize(
    ("wish", "expected"),
    [(True, PrefixPin()), (100, PrefixPin(100)), (False, None), (None, None), (0, None)],
)
def test_a_pin_is_a_number_of_tokens_or_the_whole_prompt_or_none(
    field: str, wish: Any, expected: PrefixPin | None
) -> None:
    assert parsed(**{field: wish}).pin == expected


def test_a_pin_may_be_asked_for_as_far_as_it_goes() -> None:
    assert parsed(agentserve_pin_prefix=True, agentserve_pin_best_effort=True).pin == PrefixPin(None, True)
    assert parsed(agentserve_pin_best_effort=True).pin is None


@pytest.mark.parametrize("field", PIN_FIELDS)
@pytest.mark.parametrize(
    ("wish", "code"),
    [(-1, "invalid_value"), *((wrong, "invalid_type") for wrong in (1.5, 2.0, "all", [1], {"tokens": 1}))],
)
def test_any_other_pin_is_refused(field: str, wish: Any, code: str) -> None:
    assert refused(**{field: wish}) == (code, "agentserve_pin_prefix")


def test_the_newer_spelling_wins_and_null_is_not_given() -> None:
    assert parsed(flashrt_pin_prefix=64, agentserve_pin_prefix=False).pin is None
    assert parsed(flashrt_pin_prefix=64, agentserve_pin_prefix=None).pin == PrefixPin(64)
    assert parsed(flashrt_session_id="old", agentserve_session_id="new").session_id == "new"
    assert parsed(flashrt_cache_salt="old", agentserve_cache_salt="new").namespace == "new"
    assert parsed(flashrt_cache_salt="old").namespace == "old"
    assert parsed(flashrt_cache_salt="old", cache_salt="first").namespace == "first"


@pytest.mark.parametrize("name", ["a", "s-0123abcd", "User_1@host:7.x", "x" * 128])
def test_a_session_id_is_taken_as_it_is(name: str) -> None:
    assert parsed(agentserve_session_id=name).session_id == name


@pytest.mark.parametrize("name", ["a/b", ".hidden", "x" * 129, "with space", "é", "a\n"])
def test_a_session_id_that_fits_no_path_is_refused(name: str) -> None:
    assert refused(agentserve_session_id=name) == ("invalid_session_id", "agentserve_session_id")


def test_no_session_id_is_an_empty_one() -> None:
    assert parsed(agentserve_session_id="").session_id is None


SALTED = {"prompt_cache_key": "key", "cache_salt": "salt", "agentserve_cache_salt": "own"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("cache_salt", "agentserve_cache_salt"), "salt"),
        (("prompt_cache_key", "cache_salt"), "key"),
        (("agentserve_cache_salt",), "own"),
        ((), ""),
    ],
)
def test_the_first_of_the_configured_fields_is_the_namespace(keys: tuple[str, ...], expected: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **SALTED}).encode()
    assert parse_chat(body, "r", keys).generate.namespace == expected
    assert parsed(prompt_cache_key="key").namespace == "", "by default it is a hint"


def test_a_namespace_key_that_no_request_has_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="cache_salt, agentserve_cache_salt, not 'user'"):
        load_settings({"namespace_keys": "cache_salt,user"}, {}, None)
