from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from agentserve.daemon.errors import Cancelled, RequestError, Unavailable
from agentserve.daemon.generation.generation import Generation
from agentserve.daemon.workers.channel import EventChannel
from agentserve.daemon.workers.lifecycle import State
from agentserve.daemon.workers.process import Command
from agentserve.daemon.workers.retry_after import retry_after
from agentserve.daemon.workers.supervisor import Supervisor
from agentserve.engine.protocol import Delta, GenerateRequest, LoadModel, LoadStage, Message, TextDelta

Fake = Callable[..., Command]
LOAD = LoadModel("fake-model", None)


def request(orders: str, name: str = "r1") -> GenerateRequest:
    return GenerateRequest(name, messages=(Message("user", orders),))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


@asynccontextmanager
async def supervised(
    command: Command, load_timeout: float = 10.0, stall_timeout: float = 60.0
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(LOAD, load_timeout, command, stall_timeout=stall_timeout)
    try:
        yield supervisor
    finally:
        supervisor.kill()
        await supervisor.stop()


async def until_finished(generation: Generation, channel: EventChannel) -> list[Delta]:
    deltas: list[Delta] = []
    while generation.finished is None:
        deltas += generation.take(await channel.receive())
    return deltas


async def answer(supervisor: Supervisor, orders: str, name: str = "r1") -> str:
    with supervisor.open(request(orders, name)) as channel:
        deltas = await until_finished(Generation(), channel)
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_starts_answers_and_ends(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            info = await supervisor.ensure_ready()
            assert (info.name, info.context_length) == ("fake-model", 4096)
            assert supervisor.facts.compile_cache_hit
            assert supervisor.facts.self_test is not None
            assert supervisor.facts.self_test.passed
            assert await answer(supervisor, "deltas=3") == "w0 w1 w2 "
            await until(lambda: supervisor.facts.stats is not None)
            pid = supervisor.facts.pid
            await supervisor.stop()
            assert supervisor.state is State.STOPPED
            assert not is_alive(pid)

    run(scenario)


def test_many_callers_share_one_start_and_one_that_leaves_does_not_stop_it(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake("--slow-load", "0.2")) as supervisor:
            callers = [asyncio.create_task(supervisor.ensure_ready()) for _ in range(4)]
            await until(lambda: supervisor.facts.load_stage is LoadStage.COMPILING)
            pid = supervisor.facts.pid
            callers[0].cancel()
            infos = await asyncio.gather(*callers[1:])
            assert len({id(info) for info in infos}) == 1
            assert supervisor.facts.pid == pid
            assert supervisor.facts.load_stage is None

    run(scenario)


def test_a_killed_worker_fails_its_requests_and_the_next_call_starts_another(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            first = supervisor.facts.pid
            assert first is not None
            with supervisor.open(request("deltas=1 hold")) as channel:
                generation = Generation()
                while generation.started is None:
                    generation.take(await channel.receive())
                await until(lambda: supervisor.facts.stats is not None)
                os.kill(first, signal.SIGKILL)
                with pytest.raises(
                    Unavailable, match="worker process of fake-model was killed by SIGKILL"
                ) as caught:
                    await until_finished(generation, channel)
            assert caught.value.code == "worker_died"
            assert caught.value.retry_after == 1
            assert (supervisor.state, supervisor.active) == (State.FAILED, 0)
            assert supervisor.facts.stats is None, "the memory of a dead worker is gone"
            await supervisor.ensure_ready()
            assert supervisor.facts.pid != first
            assert await answer(supervisor, "deltas=1") == "w0 "

    run(scenario)


def test_a_failed_load_keeps_its_code_and_message(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake("--fail-load", "corrupt_model")) as supervisor:
            with pytest.raises(Unavailable) as caught:
                await supervisor.ensure_ready()
            assert str(caught.value) == (
                "fake-model can't be loaded: the model file is cut off; "
                "run `agentserve rm fake-model`, then pull it again"
            )
            assert (caught.value.status, caught.value.code) == (503, "corrupt_model")
            assert supervisor.state is State.FAILED
            assert supervisor.facts.failure is not None

    run(scenario)


def test_a_worker_that_the_system_kills_while_it_loads_is_reported_with_signal_and_stage(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake("--die-loading")) as supervisor:
            with pytest.raises(
                Unavailable, match="killed by SIGKILL while compiling; the system may be out of memory"
            ):
                await supervisor.ensure_ready()

    run(scenario)


def test_a_worker_that_exits_while_it_loads_is_reported_with_its_status_and_logged(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with supervised(fake("--exit-loading", "7")) as supervisor:
            with pytest.raises(Unavailable, match="ended with status 7 while compiling"):
                await supervisor.ensure_ready()
            await until(lambda: "the last words of the worker" in caplog.text)

    caplog.set_level(logging.INFO)
    run(scenario)


def test_each_line_of_a_worker_has_its_own_level_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    lines = (
        "INFO a: news",
        "WARNING b: careful",
        "Traceback (most recent call last):",
        "ERROR: no level of ours",
    )
    program = f"import sys; sys.stderr.write({chr(10).join(lines)!r})"

    async def scenario() -> None:
        async with supervised(lambda _fd: [sys.executable, "-c", program]) as supervisor:
            with pytest.raises(Unavailable):
                await supervisor.ensure_ready()
            await until(lambda: lines[-1] in caplog.text)

    caplog.set_level(logging.INFO)
    run(scenario)
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "agentserve.worker"]
    assert [(level, text.partition("] ")[2]) for level, text in said] == [
        ("INFO", "a: news"),
        ("WARNING", "b: careful"),
        ("ERROR", "Traceback (most recent call last):"),
        ("ERROR", "ERROR: no level of ours"),
    ]


def test_loading_that_takes_too_long_is_ended(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake("--slow-load", "30"), load_timeout=0.3) as supervisor:
            with pytest.raises(Unavailable, match=r"took longer than 0.3 s \(load_timeout\)") as caught:
                await supervisor.ensure_ready()
            assert caught.value.code == "load_timeout"
            assert not is_alive(supervisor.facts.pid)

    run(scenario)


def test_a_command_that_can_not_be_run_is_a_failed_load() -> None:
    async def scenario() -> None:
        async with supervised(lambda _fd: ["/nonexistent/worker"]) as supervisor:
            with pytest.raises(Unavailable, match="can't be started: No such file or directory"):
                await supervisor.ensure_ready()
            assert supervisor.state is State.FAILED

    run(scenario)


def test_leaving_a_request_early_cancels_it_in_the_worker(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            with supervisor.open(request("hold")) as channel:
                await channel.receive()
            assert supervisor.active == 1
            await until(lambda: supervisor.active == 0)
            await until(lambda: "cancel client_disconnected" in caplog.text)

    caplog.set_level(logging.INFO)
    run(scenario)


def test_a_reader_that_falls_behind_is_given_up_and_others_go_on(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            with supervisor.open(request("burst=5000 hold", "slow")) as slow:
                assert await answer(supervisor, "deltas=2 step=0.01", "quick") == "w0 w1 "
                await until(lambda: "cancel slow_reader" in caplog.text)
                with pytest.raises(Cancelled, match="too slowly"):
                    await until_finished(Generation(), slow)

    caplog.set_level(logging.INFO)
    run(scenario)


def test_stop_drains_what_finishes_in_time(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            running = asyncio.create_task(answer(supervisor, "deltas=3 step=0.05"))
            await until(lambda: supervisor.active == 1)
            await supervisor.stop(drain=True, timeout=10)
            assert await running == "w0 w1 w2 "

    run(scenario)


def test_stop_cancels_what_does_not_finish_in_time(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            running = asyncio.create_task(answer(supervisor, "hold"))
            await until(lambda: supervisor.active == 1)
            await supervisor.stop(drain=True, timeout=0.05)
            with pytest.raises(Unavailable, match="unloaded") as caught:
                await running
            assert caught.value.code == "shutting_down"
            # As long as this worker took to load, which is when there may be another one.
            assert caught.value.retry_after == retry_after(supervisor.wait_s)

    run(scenario)


def test_a_start_during_a_stop_waits_and_starts_anew(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            first = supervisor.facts.pid
            stopping = asyncio.create_task(supervisor.stop())
            await until(lambda: supervisor.state is State.STOPPING)
            await supervisor.ensure_ready()
            await stopping
            assert supervisor.facts.pid != first

    run(scenario)


def test_a_worker_that_ignores_every_request_to_end_is_killed(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentserve.daemon.workers.supervisor._SHUTDOWN_GRACE_S", 0.1)
    monkeypatch.setattr("agentserve.daemon.workers.supervisor._TERMINATE_GRACE_S", 0.1)

    async def scenario() -> None:
        async with supervised(fake("--ignore-sigterm", "--ignore-shutdown")) as supervisor:
            await supervisor.ensure_ready()
            pid = supervisor.facts.pid
            await supervisor.stop()
            assert not is_alive(pid)
            assert supervisor.state is State.STOPPED

    run(scenario)


def test_stopping_twice_or_before_the_start_is_harmless(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.stop()
            await supervisor.ensure_ready()
            await asyncio.gather(supervisor.stop(), supervisor.stop())
            assert supervisor.state is State.STOPPED

    run(scenario)


def test_a_worker_that_does_not_read_does_not_stop_the_event_loop(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake("--deaf")) as supervisor:
            await supervisor.ensure_ready()
            began = time.monotonic()
            with supervisor.open(request("x" * 4_000_000)), supervisor.open(request("y" * 4_000_000, "r2")):
                assert time.monotonic() - began < 0.5
                pid = supervisor.facts.pid
                supervisor.kill()
                await until(lambda: supervisor.state is State.STOPPED)
                assert not is_alive(pid)

    run(scenario)


def test_a_request_without_a_ready_worker_is_refused(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            with pytest.raises(Unavailable, match="not running"), supervisor.open(request("")):
                pass

    run(scenario)


def test_a_failed_request_leaves_the_worker_and_other_requests_alone(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            with pytest.raises(RequestError, match="the engine failed") as caught:
                await answer(supervisor, "deltas=3 fail_after=1")
            assert caught.value.status == 500
            assert await answer(supervisor, "deltas=1", "r2") == "w0 "

    run(scenario)


def test_requests_that_had_not_started_are_answered_by_the_next_worker(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake()) as supervisor:
            await supervisor.ensure_ready()
            first = supervisor.facts.pid
            waiting = [
                asyncio.create_task(answer(supervisor, f"prefill=1 deltas={n}", f"w{n}")) for n in (1, 2)
            ]
            await until(lambda: supervisor.active == 2)
            with pytest.raises(Unavailable, match="killed by SIGKILL") as caught:
                await answer(supervisor, "deltas=2 die_after=1", "culprit")
            # Clients are told to come back when another worker can be there.
            assert (caught.value.code, caught.value.retry_after) == ("worker_died", 1)
            assert await asyncio.gather(*waiting) == ["w0 ", "w0 w1 "]
            assert supervisor.facts.pid != first
            assert supervisor.active == 0

    run(scenario)


def test_a_request_goes_to_a_second_worker_and_to_no_third(fake: Fake) -> None:
    starts = 0

    def counting(descriptor: int) -> Sequence[str]:
        nonlocal starts
        starts += 1
        return fake()(descriptor)

    async def scenario() -> None:
        async with supervised(counting) as supervisor:
            await supervisor.ensure_ready()
            with pytest.raises(Unavailable, match="SIGKILL"):
                await answer(supervisor, "die_queued")
            assert supervisor.state is State.FAILED

    run(scenario)
    assert starts == 2


def test_a_request_whose_client_leaves_between_two_workers_reaches_no_second_one(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    commands = [fake(), fake("--slow-load", "0.3")]

    async def scenario() -> None:
        async with supervised(lambda descriptor: commands[0](descriptor)) as supervisor:
            await supervisor.ensure_ready()
            commands.pop(0)
            with supervisor.open(request("prefill=5", "waiting")):
                with pytest.raises(Unavailable):
                    await answer(supervisor, "deltas=2 die_after=1", "culprit")
                await until(lambda: supervisor.state is State.STARTING)
            await supervisor.ensure_ready()
            assert supervisor.active == 0
            assert await answer(supervisor, "deltas=1", "next") == "w0 "

    caplog.set_level(logging.INFO)
    run(scenario)
    assert "cancel" not in caplog.text


def test_what_waits_for_a_second_worker_that_can_not_load_fails_with_the_reason(fake: Fake) -> None:
    commands = [fake(), fake("--fail-load", "out_of_memory")]

    async def scenario() -> None:
        async with supervised(lambda descriptor: commands[0](descriptor)) as supervisor:
            await supervisor.ensure_ready()
            commands.pop(0)
            waiting = asyncio.create_task(answer(supervisor, "prefill=5", "waiting"))
            await until(lambda: supervisor.active == 1)
            with pytest.raises(Unavailable):
                await answer(supervisor, "deltas=2 die_after=1", "culprit")
            with pytest.raises(Unavailable, match="can't be loaded") as caught:
                await waiting
            assert caught.value.code == "out_of_memory"

    run(scenario)


def test_a_worker_that_does_nothing_is_killed_and_the_next_one_serves(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake(), stall_timeout=0.3) as supervisor:
            await supervisor.ensure_ready()
            pid = supervisor.facts.pid
            with pytest.raises(Unavailable, match=r"did nothing for 0.3 s \(stall_timeout\)") as caught:
                await answer(supervisor, "deltas=1 hold")
            assert (caught.value.code, caught.value.retry_after) == ("worker_stalled", 1)
            assert not is_alive(pid)
            await supervisor.ensure_ready()
            assert await answer(supervisor, "deltas=1") == "w0 "

    run(scenario)


def test_a_worker_that_is_slow_but_works_or_has_nothing_to_do_is_left_alone(fake: Fake) -> None:
    async def scenario() -> None:
        async with supervised(fake(), stall_timeout=0.3) as supervisor:
            await supervisor.ensure_ready()
            pid = supervisor.facts.pid
            assert (await answer(supervisor, "deltas=8 step=0.1")).count("w") == 8
            await asyncio.sleep(0.5)
            assert await answer(supervisor, "deltas=1", "r2") == "w0 "
            assert supervisor.facts.pid == pid

    run(scenario)
