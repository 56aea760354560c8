"""Every stage that a request can be in, ended in every way from outside, over real sockets.

A row of `STAGES` says how to bring a request there and how to see that it is there; a row of `ENDINGS` how to end it and
what its client must see. Further stages and endings are further rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import httpx
import pytest
from agentserve.daemon.records.request_state import RequestState
from agentserve.daemon.workers.process import Command
from agentserve.engine.runners.reference_model import byte_tokenizer
from raw_http import LAST_CHUNK, RawRequest

Fake = Callable[..., Command]
Serve = Callable[..., Any]
NAMED = "X-Request-ID: mine\r\n"
# A step of the mock device, and what may pass until its engine is free: one prompt chunk and this machine's moods.
STEP_S, FREE_S = 0.05, 3.0
# To this the mock device answers with 158 tokens, which is long.
LONG_REPLY = "text 47"
# Without an end a reply goes on until the context is full, with drafts too.
ENDLESS = {"logit_bias": {str(token): -100 for token in byte_tokenizer().eos_ids}}


@dataclass(frozen=True)
class Stage:
    """`content` is what is asked, with the further `fields`; `fake` names switches of a fake worker where the real one
    is too quick. `drafts` is how many tokens a step may draft."""

    name: str
    reached: RequestState
    content: str = "hello"
    is_blocked: bool = False
    fake: tuple[str, ...] = ()
    drafts: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """`reason` is what the record says; the client sees `status` before its stream began, else an error frame or none.

    `deadline_s` is given with the request; `end` does the rest.
    """

    name: str
    reason: str
    status: int | None
    has_frame: bool
    end: Callable[[Any, RawRequest], object]
    deadline_s: float | None = None


STAGES = [
    Stage("loading", RequestState.ENQUEUED, fake=("--slow-load", "60")),
    Stage("queued", RequestState.QUEUED, is_blocked=True),
    Stage("prefill", RequestState.PREFILL, content="x" * 2500),
    Stage("decode", RequestState.DECODE, content=LONG_REPLY),
    Stage("speculating", RequestState.DECODE, drafts=8, fields=ENDLESS),
    Stage("constrained", RequestState.DECODE, fields={"guided_regex": "[a-z]{2000}"}),
]
ENDINGS = [
    Ending("by id", "cancelled_by_id", 499, True, lambda live, _raw: delete(live, "mine")),
    Ending("disconnect", "client_disconnected", None, False, lambda _live, raw: raw.socket.close()),
    Ending("deadline", "deadline", 504, True, lambda _live, _raw: None, deadline_s=0.8),
]


def delete(live: Any, name: str) -> None:
    assert httpx.delete(f"{live.url}/agentserve/v1/requests/{name}").status_code == 200


@contextmanager
def staged(serve: Serve, fake: Fake, stage: Stage, **settings: Any) -> Iterator[Any]:
    """A daemon in which the next request comes to that stage and stays there."""
    settings = {"reference_step": STEP_S, "max_active_sessions": 1, **settings}
    settings |= {"draft_tokens": stage.drafts, "max_draft_tokens": stage.drafts}
    with ExitStack() as held:
        command = fake(*stage.fake) if stage.fake else None
        live = serve(command=command, ready=command is None, **settings)
        if stage.is_blocked:
            blocker = RawRequest(live, LONG_REPLY, stream=True, temperature=0)
            held.enter_context(blocker).until(b"content")
        yield live


def entry_of(live: Any) -> Any:
    return next(
        (one for one in live.daemon.service.ledger.active.values() if one.caller.request_id == "mine"), None
    )


def begin(live: Any, stage: Stage, *, stream: bool, deadline_s: float | None) -> RawRequest:
    """Sends the request and waits until it is where it should be."""
    content = stage.content
    if stage.reached is RequestState.PREFILL:
        # What an earlier one has left would make this one short.
        content = f"{live.daemon.service.ledger.received} {content}"
    drafted = tokens_drafted(live)
    fields = {"stream": stream, "temperature": 0, "timeout": deadline_s, **stage.fields}
    raw = RawRequest(live, content, headers=NAMED, **fields)
    live.until(lambda: (entry := entry_of(live)) is not None and entry.generation.life.state is stage.reached)
    if stage.drafts:
        live.until(lambda: tokens_drafted(live) > drafted)
    return raw


def tokens_drafted(live: Any) -> int:
    told = (worker.facts.stats for worker in live.daemon.router.supervisors())
    return sum(stats.drafts.drafted for stats in told if stats is not None)


def check_answer(raw: RawRequest, ending: Ending, *, had_headers: bool) -> None:
    if ending.status is None:
        return
    answer = raw.to_the_end() if had_headers else raw.until(b"}}")
    if had_headers:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert (b'"streaming_error"' in answer) is ending.has_frame
        assert b"[DONE]" not in answer
        assert not answer.endswith(LAST_CHUNK)
    else:
        assert answer.startswith(f"HTTP/1.1 {ending.status} ".encode())


def check_record(live: Any, stage: Stage, ending: Ending) -> None:
    live.until(lambda: entry_of(live) is None)
    record = next(live.daemon.service.records.newest())
    assert (record.terminal_state, record.reason) == ("cancelled", ending.reason)
    was_started = stage.reached in (RequestState.PREFILL, RequestState.DECODE)
    assert (record.started_at is not None) is was_started
    assert (record.first_token_at is not None) is (stage.reached is RequestState.DECODE)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_request_can_be_ended_wherever_it_is(
    serve: Serve, fake: Fake, stage: Stage, subtests: pytest.Subtests
) -> None:
    with staged(serve, fake, stage) as live:
        for ending, stream in product(ENDINGS, (True, False)):
            with subtests.test(ending=ending.name, stream=stream):
                end_once(live, stage, ending, stream=stream)


def end_once(live: Any, stage: Stage, ending: Ending, *, stream: bool) -> None:
    counted = live.call(live.daemon.service.ledger.counts).cancelled
    with begin(live, stage, stream=stream, deadline_s=ending.deadline_s) as raw:
        ending.end(live, raw)
        check_answer(raw, ending, had_headers=stream and not stage.fake)
    check_record(live, stage, ending)
    assert live.call(live.daemon.service.ledger.counts).cancelled == counted + 1
    check_engine_is_free(live, stage)


def check_engine_is_free(live: Any, stage: Stage) -> None:
    """The worker has nothing of the request any more, soon after it ended, and serves the next one."""
    (worker,) = live.daemon.router.supervisors()
    began = time.monotonic()
    live.until(lambda: worker.active == int(stage.is_blocked))
    assert time.monotonic() - began < FREE_S
    if not stage.fake and not stage.is_blocked:
        body = {"model": "reference", "messages": [{"role": "user", "content": "next"}], "max_tokens": 2}
        assert httpx.post(f"{live.url}/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_shutdown_ends_a_request_wherever_it_is_so_that_its_client_comes_back(
    serve: Serve, fake: Fake, stage: Stage, stream: bool
) -> None:
    with staged(serve, fake, stage, drain_timeout=0.1) as live:
        with begin(live, stage, stream=stream, deadline_s=None) as raw:
            live.shut_down(drain=True)
            answer = raw.to_the_end()
            if stream and not stage.fake:
                assert b"error" not in answer
                assert not answer.endswith(LAST_CHUNK)
            else:
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"\r\nretry-after: " in answer
        live.join()
        assert not live.daemon.service.ledger.active


def test_a_prompt_that_was_cancelled_is_not_computed_again(serve: Serve, fake: Fake) -> None:
    stage = next(stage for stage in STAGES if stage.name == "prefill")
    with staged(serve, fake, stage) as live:
        with begin(live, stage, stream=True, deadline_s=None):
            (worker,) = live.daemon.router.supervisors()
            live.until(lambda: worker.facts.stats is not None and worker.facts.stats.tokens_prefilled > 300)
        live.until(lambda: worker.active == 0)
        body = {
            "model": "reference",
            "messages": [{"role": "user", "content": f"0 {stage.content}"}],
            "max_tokens": 1,
        }
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["agentserve"]["cached_tokens"] >= 288
