"""The memory of replies: found by their exact place, bounded, and safe between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from agentserve.engine.replies.memory import Found, Reply, ReplyMemory, place_after

TEXT = "user asks, assistant: "


def reply(text: str, tokens: int = 3) -> Reply:
    return Reply(tuple(range(tokens)), text)


def test_a_reply_is_found_behind_the_text_that_it_answered() -> None:
    memory = ReplyMemory()
    memory.remember(place_after("", TEXT), reply("yes"))
    assert memory.find("", TEXT + "yes, user asks more") == [Found(len(TEXT), (reply("yes"),))]


def test_nothing_is_found_behind_another_text_or_in_another_namespace() -> None:
    memory = ReplyMemory()
    memory.remember(place_after("a", TEXT), reply("yes"))
    assert memory.find("a", TEXT.replace("asks", "says") + "yes") == []
    assert memory.find("b", TEXT + "yes") == []
    assert memory.find("a", TEXT[:-1]) == []


def test_the_latest_of_several_replies_comes_first_and_none_comes_twice() -> None:
    memory = ReplyMemory()
    for text in ("yes", "no", "yes"):
        memory.remember(place_after("", TEXT), reply(text))
    ((_, replies),) = memory.find("", TEXT)
    assert [item.text for item in replies] == ["yes", "no"]


def test_places_come_in_the_order_of_the_text() -> None:
    memory = ReplyMemory()
    for length in (20, 5, 12):
        memory.remember(place_after("", TEXT[:length]), reply(str(length)))
    assert [found.start for found in memory.find("", TEXT)] == [5, 12, 20]


def test_the_reply_that_was_used_least_recently_is_forgotten_first() -> None:
    memory = ReplyMemory(most_replies=2)
    memory.remember(place_after("", "a"), reply("1"))
    memory.remember(place_after("", "b"), reply("2"))
    assert memory.find("", "a")
    memory.remember(place_after("", "c"), reply("3"))
    assert (bool(memory.find("", "a")), bool(memory.find("", "b")), len(memory)) == (True, False, 2)


def test_long_replies_are_forgotten_by_their_tokens() -> None:
    memory = ReplyMemory(most_tokens=10)
    for number in range(4):
        memory.remember(place_after("", str(number)), reply("x", tokens=4))
    assert len(memory) == 2
    memory.remember(place_after("", "long"), reply("x", tokens=11))
    assert len(memory) == 0
    assert memory.find("", "long") == []


def test_threads_may_remember_and_find_at_the_same_time() -> None:
    memory = ReplyMemory(most_replies=50)

    def work(thread: int) -> int:
        for number in range(300):
            memory.remember(place_after("", f"{thread % 2} {number}"), reply(str(thread)))
            memory.find("", f"{thread % 2} {number} and more")
        return len(memory)

    with ThreadPoolExecutor(4) as pool:
        assert all(size <= 51 for size in pool.map(work, range(4)))
    assert len(memory) == 50
