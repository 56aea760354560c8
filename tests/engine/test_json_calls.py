"""Calls are compared as values, and what can't be read as one is compared as text."""

from __future__ import annotations

import pytest
from agentserve.engine.prompts.json_calls import canonical, end_of_equal_text

WRITTEN, SENT = '{"a": 1, "b": "é"} so', '{"b":"\\u00e9","a":1} so'


def test_equal_arguments_are_equal_however_they_are_spelled() -> None:
    assert end_of_equal_text(WRITTEN, SENT, 0, {canonical('{"a":1,"b":"é"}')}) == len(SENT)
    assert end_of_equal_text(WRITTEN, SENT, 0, {canonical('{"a":2}')}) is None


@pytest.mark.parametrize("depth", [range(800, 1010), [100_000]], ids=["near the limit", "far beyond"])
def test_no_depth_is_an_error(depth: range | list[int]) -> None:
    for levels in depth:
        deep = '{"a":' * levels + "1" + "}" * levels
        assert end_of_equal_text(deep, deep, 0, {canonical(deep)}) == len(deep)
        # Spelled otherwise it is found as long as it can be read.
        found = end_of_equal_text(deep, deep.replace(":", ": "), 0, {canonical(deep)})
        assert found == len(deep) + levels or (found is None and levels > 900)
