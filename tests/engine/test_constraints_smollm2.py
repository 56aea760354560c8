"""A real model and a real vocabulary: what is asked for comes out, with drafts and without.

`tests/bench/structured.py` does the same for 100 schemas and says what it costs.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agentserve.engine.engine import Engine
from agentserve.engine.loading import load
from agentserve.engine.protocol import (
    Constraint,
    Finished,
    GenerateRequest,
    LoadModel,
    LogprobsDelta,
    Message,
    RequestEvent,
    SamplingParams,
    TextDelta,
    ToolCallDelta,
)
from agentserve.engine.sequence import Stamps
from jsonschema import Draft202012Validator
from random_schemas import random_schema

pytestmark = pytest.mark.model
PROMPT = "Fill in the form with made-up values, as JSON."
GREEDY = SamplingParams(temperature=0.0)


class Answer(NamedTuple):
    events: list[RequestEvent]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def end(self) -> Finished:
        return next(event for event in self.events if isinstance(event, Finished))


Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def ask(smollm2: Path) -> Ask:
    """Asks the model in exact mode, where drafts can't change a bit."""
    spec = LoadModel(
        "m", str(smollm2), threads=2, max_context=2048, exact=True, max_draft_tokens=16, tool_format="hermes"
    )
    model = load(spec, lambda _stage: None)
    events: list[RequestEvent] = []
    engine = Engine(
        model.runner, model.config, model.prompter.tokenizer.eos_ids, model.block_cache(), events.append
    )

    def answer(text: str = PROMPT, **fields: Any) -> Answer:
        given = {"sampling": GREEDY, "max_new_tokens": 600, **fields}
        request = GenerateRequest("r", (Message("user", text),), **given)
        events.clear()
        prompt = model.prompter.prompt(request)
        engine.submit(model.prompter.sequence(request, prompt, Stamps(0.0)))
        while engine.load:
            engine.step()
        return Answer(list(events))

    return answer


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value), "response_format")


def test_random_schemas_give_valid_documents(ask: Ask) -> None:
    for seed in range(25):
        wanted = random_schema(random.Random(1000 + seed))
        sampling = SamplingParams(temperature=0.8, seed=seed)
        answer = ask(constraint=schema(wanted), sampling=sampling, draft_tokens=8)
        assert answer.end.finish_reason == "stop"
        checker = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator(wanted, format_checker=checker).validate(json.loads(answer.text))


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=0.9, seed=4)], ids=["greedy", "seeded"]
)
def test_the_text_is_the_same_for_every_draft_length(ask: Ask, sampling: SamplingParams) -> None:
    form = {
        "type": "object",
        "properties": {
            "full_name": {"type": "string", "maxLength": 20},
            "favourite_colour": {"enum": ["dark red", "dark green"]},
            "children": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
        },
        "required": ["full_name", "favourite_colour", "children"],
        "additionalProperties": False,
    }
    answers = [ask(constraint=schema(form), sampling=sampling, draft_tokens=most) for most in (0, 4, 16)]
    assert len({answer.text for answer in answers}) == 1
    assert answers[2].end.drafts.drafters[0].drafter == "grammar"
    assert answers[2].end.drafts.steps < answers[0].end.completion_tokens


def test_expressions_and_grammars_are_kept(ask: Ask) -> None:
    phone = ask("Your phone number?", constraint=Constraint("regex", "[0-9]{3}-[0-9]{4}", "p"))
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", phone.text)
    sum_of = 'start: number (" + " number)~1..3\nnumber: /[1-9][0-9]{0,2}/'
    assert re.fullmatch(
        r"[1-9][0-9]*( \+ [1-9][0-9]*){1,3}", ask("A sum?", constraint=Constraint("lark", sum_of, "p")).text
    )


def test_any_object_is_valid_json_or_says_that_it_was_cut(ask: Ask) -> None:
    answer = ask("Describe a dog as JSON.", constraint=schema({"type": "object"}), max_new_tokens=80)
    assert answer.text.startswith("{")
    if answer.end.finish_reason == "stop":
        assert isinstance(json.loads(answer.text), dict)


def test_letters_of_many_bytes_come_out_whole(ask: Ask) -> None:
    word = "Ærøskøbing 日本 🦊"
    answer = ask(constraint=schema({"enum": [word]}), logprobs=1)
    assert json.loads(answer.text) == word
    told = [token for event in answer.events if isinstance(event, LogprobsDelta) for token in event.tokens]
    assert b"".join(token.text for token in told).decode() == answer.text


def test_a_model_without_any_idea_of_tools_calls_the_one_that_it_has_to(ask: Ask) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    answer = ask("Weather in Rome?", tools_json=json.dumps(tools), required_tools=("get_weather",))
    assert answer.end.finish_reason == "tool_calls"
    pieces = [event for event in answer.events if isinstance(event, ToolCallDelta)]
    assert pieces[0].name == "get_weather"
    first = "".join(piece.arguments for piece in pieces if piece.index == 0)
    Draft202012Validator(parameters).validate(json.loads(first))
