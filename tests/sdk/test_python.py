"""The official Python SDK against daemons over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Literal

import httpx
import openai
import pytest
from daemon_process import DaemonProcess
from openai import OpenAI
from pydantic import BaseModel, ConfigDict
from sdk_answers import Stop, Trip, conforms, folded, whole
from sdk_requests import PAINTS, PROSE, SCRIPTED, TOOLS, told

Client = Callable[..., OpenAI]


class Paint(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "blue"]


def ordered(orders: str, **fields: Any) -> dict[str, Any]:
    """A request for the worker that does what it is told."""
    return {"model": "reference", "messages": [{"role": "user", "content": orders}], **fields}


# ---- answers


def test_a_whole_answer_has_all_that_the_sdk_knows(connect: Client, faulty: DaemonProcess) -> None:
    answer = connect(faulty).chat.completions.create(**ordered("deltas=3"))
    assert answer.id.startswith("chatcmpl-")
    assert abs(answer.created - time.time()) < 60
    shape = (answer.object, answer.model, answer.system_fingerprint)
    assert shape == ("chat.completion", "reference", "fake-1")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "w0 w1 w2 ")
    assert answer.usage is not None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 3, 13)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 4


def test_a_stream_begins_with_the_role_and_ends_with_the_usage(
    connect: Client, faulty: DaemonProcess
) -> None:
    asked = ordered("deltas=3 step=0.01", stream_options={"include_usage": True})
    first, *middle, last, usage = connect(faulty).chat.completions.create(**asked, stream=True)
    assert first.choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == "w0 w1 w2 "
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 13
    assert {chunk.id for chunk in middle} == {first.id} == {last.id} == {usage.id}


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_stream_adds_up_to_the_whole_answer(connect: Client, scripted: DaemonProcess, name: str) -> None:
    client, asked = connect(scripted), SCRIPTED[name]
    answer = client.chat.completions.create(**asked)
    *chunks, last = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    assert folded(chunks, asked.get("n", 1)) == whole(answer)
    for one in (answer, *chunks, last):
        conforms(one)
    assert answer.usage is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == answer.usage.completion_tokens
    assert last.usage.prompt_tokens == answer.usage.prompt_tokens


@pytest.mark.parametrize("name", SCRIPTED)
def test_the_helper_for_streams_ends_with_the_whole_answer(
    connect: Client, scripted: DaemonProcess, name: str
) -> None:
    client, asked = connect(scripted), SCRIPTED[name]
    with client.chat.completions.stream(**asked) as stream:
        # Unlike the final completion, which is refused when it was cut.
        final = stream.until_done().current_completion_snapshot
    assert whole(final) == whole(client.chat.completions.create(**asked))


def test_text_is_what_the_model_said_to_the_byte(connect: Client, scripted: DaemonProcess) -> None:
    def answer(name: str) -> tuple[str | None, str]:
        (choice,) = connect(scripted).chat.completions.create(**SCRIPTED[name]).choices
        return choice.message.content, choice.finish_reason

    assert answer("text") == (PROSE, "stop")
    assert answer("cut text") == ("Grüße a", "length")
    assert answer("stop string") == (PROSE.partition("  r")[0], "stop")


def test_n_choices_are_one_answer(connect: Client, scripted: DaemonProcess) -> None:
    answer = connect(scripted).chat.completions.create(**SCRIPTED["three choices"])
    assert [one.text for one in whole(answer)] == [PROSE] * 3
    calling = whole(connect(scripted).chat.completions.create(**SCRIPTED["three choices with calls"]))
    ids = [call_id for one in calling for call_id in one.ids]
    assert len(set(ids)) == 6


def test_logprobs_spell_the_text(connect: Client, scripted: DaemonProcess) -> None:
    (choice,) = connect(scripted).chat.completions.create(**SCRIPTED["logprobs"]).choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)


# ---- tools


def test_a_single_call_comes_beside_the_text(connect: Client, scripted: DaemonProcess) -> None:
    (choice,) = connect(scripted).chat.completions.create(**SCRIPTED["single call"]).choices
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert (call.function.name, json.loads(call.function.arguments)) == ("read", {"path": "ä/🦊.py"})


def test_parallel_calls_keep_their_order_and_have_ids_of_their_own(
    connect: Client, scripted: DaemonProcess
) -> None:
    client = connect(scripted)
    (choice,) = client.chat.completions.create(**SCRIPTED["parallel calls"]).choices
    (streamed,) = folded(client.chat.completions.create(**SCRIPTED["parallel calls"], stream=True))
    assert choice.message.content is None
    assert [name for name, _ in streamed.calls] == ["read", "paint"]
    ids = [call.id for call in choice.message.tool_calls or ()] + streamed.ids
    assert len(set(ids)) == 4
    alone = client.chat.completions.create(**SCRIPTED["one call at most"])
    assert [one.calls[0][0] for one in whole(alone) if len(one.calls) == 1] == ["read"]


@pytest.mark.parametrize("name", ["required call", "named call"])
def test_a_call_that_is_demanded_comes(connect: Client, scripted: DaemonProcess, name: str) -> None:
    (one,) = whole(connect(scripted).chat.completions.create(**SCRIPTED[name]))
    ((tool, arguments),) = one.calls
    assert (tool, one.text, one.finish_reason) == ("paint", "", "tool_calls")
    Paint.model_validate_json(arguments)


def test_arguments_are_parsed_by_the_model_of_their_tool(connect: Client, scripted: DaemonProcess) -> None:
    asked = told(f"So.\n{PAINTS}", tools=[openai.pydantic_function_tool(Paint, name="paint")])
    client = connect(scripted)
    parsed = client.chat.completions.parse(**asked).choices[0].message
    with client.chat.completions.stream(**asked) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        streamed = stream.get_final_completion().choices[0].message
    assert [event.parsed_arguments for event in done] == [Paint(colour="blue")]
    for message in (parsed, streamed):
        assert message.content == "So."
        assert [call.function.parsed_arguments for call in message.tool_calls or ()] == [Paint(colour="blue")]


def test_calls_go_back_with_their_results_in_any_order(connect: Client, scripted: DaemonProcess) -> None:
    client = connect(scripted)
    asked = SCRIPTED["parallel calls"]
    message = client.chat.completions.create(**asked).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"<reply>{call.function.name} done</reply>"}  # type: ignore[union-attr]
        for call in message.tool_calls or ()
    ]
    history = [*asked["messages"], message, *reversed(results)]
    answer = client.chat.completions.create(model="reference", messages=history, tools=TOOLS)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "read done"
    strange = [*asked["messages"], message, results[0] | {"tool_call_id": "call_x"}]
    with pytest.raises(openai.BadRequestError, match="no call before it has the id 'call_x'"):
        client.chat.completions.create(model="reference", messages=strange, tools=TOOLS)  # type: ignore[call-overload]


# ---- schemas


def test_the_sdk_parses_what_its_own_schema_asked_for(connect: Client, scripted: DaemonProcess) -> None:
    client = connect(scripted)
    wanted = Trip(city="São Paulo", stops=[Stop(name="Ubatuba", nights=12)], note="日本 🦊")
    for reply in (wanted.model_dump_json(), "São Paulo, for three days."):
        asked = told(reply, max_tokens=200)
        parsed = client.chat.completions.parse(**asked, response_format=Trip).choices[0].message.parsed
        assert isinstance(parsed, Trip)
        assert reply[0] != "{" or parsed == wanted
        with client.chat.completions.stream(**asked, response_format=Trip) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == parsed
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**told(wanted.model_dump_json(), max_tokens=5), response_format=Trip)


# ---- the other routes


def test_bare_prompts_are_completed_whole_and_streamed(connect: Client, scripted: DaemonProcess) -> None:
    client = connect(scripted)
    prompt = f"<reply>{PROSE}</reply><|im_start|>assistant\n"
    asked: dict[str, Any] = {"model": "reference", "prompt": [prompt, prompt], "n": 2, "max_tokens": 50}
    answer = client.completions.create(**asked, temperature=0)
    conforms(answer)
    assert (answer.object, answer.id[:5]) == ("text_completion", "cmpl-")
    assert [(one.index, one.text, one.finish_reason) for one in answer.choices] == [
        (index, PROSE, "stop") for index in range(4)
    ]
    texts = [""] * 4
    for chunk in client.completions.create(**asked, temperature=0, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [PROSE] * 4
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(**asked, suffix="the end")


def test_models_are_listed_and_found_by_their_names(connect: Client, scripted: DaemonProcess) -> None:
    client = connect(scripted)
    (listed,) = client.models.list()
    conforms(listed)
    assert (listed.id, listed.object, listed.owned_by) == ("reference", "model", "agentserve")
    assert client.models.retrieve("reference") == listed
    card = listed.to_dict()
    assert card["context_length"] == card["max_model_len"] == 16_384
    with pytest.raises(openai.NotFoundError, match="There is no model 'a/b:c'") as missing:
        client.models.retrieve("a/b:c")
    assert missing.value.code == "model_not_found"


# ---- errors


ERRORS: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None, str | None]] = [
    (ordered("") | {"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model"),
    (ordered("", temperature=3), openai.BadRequestError, "invalid_value", "temperature"),
    (ordered("reject=context_length_exceeded"), openai.BadRequestError, "context_length_exceeded", "messages"),
    (ordered("deltas=2 fail_after=1"), openai.InternalServerError, "internal_error", None),
    (ordered("deltas=2 die_after=1"), openai.InternalServerError, "worker_died", None),
    (ordered("hold", extra_body={"timeout": 0.1}), openai.InternalServerError, "timeout", None),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "kind", "code", "param"), ERRORS)
def test_errors_are_the_exceptions_of_the_sdk(
    connect: Client,
    faulty: DaemonProcess,
    asked: dict[str, Any],
    kind: type[openai.APIStatusError],
    code: str | None,
    param: str | None,
) -> None:
    with pytest.raises(kind) as caught:
        connect(faulty).chat.completions.create(**asked)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id


def test_a_path_and_a_method_that_are_not_there_are_errors_too(
    connect: Client, faulty: DaemonProcess
) -> None:
    client = connect(faulty)
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.list()
    with pytest.raises(openai.APIStatusError) as caught:
        client.models.delete("reference")
    assert caught.value.status_code == 405


def test_an_error_frame_in_a_stream_is_an_api_error(connect: Client, faulty: DaemonProcess) -> None:
    stream = connect(faulty).chat.completions.create(**ordered("deltas=2 fail_after=1 step=0.1"), stream=True)
    with pytest.raises(openai.APIError, match="the engine failed while it computed this request"):
        list(stream)


def test_a_stream_that_breaks_off_is_no_answer(connect: Client, faulty: DaemonProcess) -> None:
    stream = connect(faulty).chat.completions.create(**ordered("deltas=3 die_after=2 step=0.1"), stream=True)
    with pytest.raises(openai.APIConnectionError):
        list(stream)


# ---- a full queue


def test_a_full_queue_is_a_rate_limit_error(connect: Client, narrow: DaemonProcess) -> None:
    client = connect(narrow)
    with client.chat.completions.create(**ordered("hold"), stream=True) as running:
        call_id = next(iter(running)).id
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(**ordered(""), stream=stream)
            assert (refused.value.code, refused.value.type) == ("queue_full", "rate_limit_error")
            assert refused.value.response.headers["retry-after"] == "1"
    narrow.ended(call_id)


def test_the_sdk_comes_back_after_the_time_that_it_was_told(connect: Client, narrow: DaemonProcess) -> None:
    running = connect(narrow).chat.completions.create(**ordered("hold"), stream=True)
    next(iter(running))
    answers: list[tuple[int, float]] = []

    def note(response: httpx.Response) -> None:
        answers.append((response.status_code, time.monotonic()))
        running.close()

    with openai.DefaultHttpxClient(event_hooks={"response": [note]}) as http:
        answer = connect(narrow, max_retries=2, http_client=http).chat.completions.create(
            **ordered("deltas=2")
        )
    assert answer.choices[0].message.content == "w0 w1 "
    (refused, first), (accepted, second) = answers
    assert (refused, accepted) == (429, 200)
    # Without the header it would have come back in half a second.
    assert second - first >= 1


# ---- cancellation


def close(stream: openai.Stream[Any]) -> None:
    stream.close()


def leave(stream: openai.Stream[Any]) -> None:
    with stream:
        pass


@pytest.mark.parametrize("way", [close, leave])
@pytest.mark.parametrize("orders", ["hold", "deltas=9999 step=0.01"])
def test_closing_a_stream_cancels_its_request(
    connect: Client, faulty: DaemonProcess, way: Callable[[openai.Stream[Any]], None], orders: str
) -> None:
    stream = connect(faulty).chat.completions.create(**ordered(orders), stream=True)
    call_id = next(iter(stream)).id
    way(stream)
    record = faulty.ended(call_id)
    assert (record.terminal_state, record.reason) == ("cancelled", "client_disconnected")


def test_a_task_that_is_cancelled_cancels_its_request(faulty: DaemonProcess) -> None:
    async def read(seen: asyncio.Queue[str]) -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{faulty.url}/v1", api_key="anything", max_retries=0
        ) as client:
            async for chunk in await client.chat.completions.create(**ordered("deltas=2 hold"), stream=True):
                await seen.put(chunk.id)

    async def give_up() -> str:
        seen: asyncio.Queue[str] = asyncio.Queue()
        reading = asyncio.create_task(read(seen))
        async with asyncio.timeout(30):
            call_id = await seen.get()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return call_id

    record = faulty.ended(asyncio.run(give_up()))
    assert (record.terminal_state, record.reason) == ("cancelled", "client_disconnected")


def test_leaving_the_helper_cancels_its_request(connect: Client, faulty: DaemonProcess) -> None:
    with connect(faulty).chat.completions.stream(**ordered("deltas=2 hold")) as stream:
        while (event := next(stream)).type != "chunk":
            pass
    record = faulty.ended(event.chunk.id)
    assert (record.terminal_state, record.reason) == ("cancelled", "client_disconnected")


def test_a_time_out_of_the_sdk_is_its_own_error_and_cancels(connect: Client, faulty: DaemonProcess) -> None:
    headers = {"X-Request-ID": "impatient"}
    with pytest.raises(openai.APITimeoutError):
        connect(faulty, timeout=0.3).chat.completions.create(**ordered("hold"), extra_headers=headers)
    record = faulty.ended("impatient")
    assert (record.terminal_state, record.reason) == ("cancelled", "client_disconnected")
