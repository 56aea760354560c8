from __future__ import annotations

import asyncio

import pytest
from agentserve.daemon.workers.channel import EventChannel
from agentserve.engine.protocol import TextDelta


def delta(text: str) -> TextDelta:
    return TextDelta("r", text, 1)


def test_events_that_wait_come_together_and_in_order() -> None:
    async def scenario() -> None:
        channel = EventChannel()
        assert channel.put(delta("a"))
        assert channel.put(delta("b"))
        assert await channel.receive() == [delta("a"), delta("b")]

    asyncio.run(scenario())


def test_a_reader_wakes_for_the_first_event() -> None:
    async def scenario() -> None:
        channel = EventChannel()
        reader = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        channel.put(delta("a"))
        assert await reader == [delta("a")]

    asyncio.run(scenario())


def test_silence_ends_after_the_timeout_with_an_empty_list() -> None:
    async def scenario() -> None:
        channel = EventChannel()
        assert await channel.receive(0.001) == []
        channel.put(delta("late"))
        assert await channel.receive(0.001) == [delta("late")]

    asyncio.run(scenario())


def test_what_was_handed_over_comes_before_the_error_and_the_first_error_stays() -> None:
    async def scenario() -> None:
        channel = EventChannel()
        channel.put(delta("a"))
        channel.fail(ValueError("first"))
        channel.fail(ValueError("second"))
        assert not channel.put(delta("late"))
        assert await channel.receive() == [delta("a")]
        for _ in range(2):
            with pytest.raises(ValueError, match="first"):
                await channel.receive()

    asyncio.run(scenario())


def test_a_full_channel_refuses_and_keeps_what_it_has() -> None:
    async def scenario() -> None:
        channel = EventChannel(capacity=2)
        assert [channel.put(delta(text)) for text in "abc"] == [True, True, False]
        assert await channel.receive() == [delta("a"), delta("b")]
        assert channel.put(delta("d"))

    asyncio.run(scenario())
