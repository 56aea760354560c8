"""The scheduler alone, driven with made-up step times."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from agentserve.engine.protocol import GenerateRequest, Message
from agentserve.engine.scheduling.scheduler import Lane, Scheduler, lane_of
from hypothesis import given, settings
from hypothesis import strategies as st

TURN, STEP = 1.0, 0.5


@dataclass
class Desk:
    """Runs requests of given lengths and notes who had the engine, from when on and for how long."""

    most_started: int = 8
    now: float = 0.0
    left: dict[str, float] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    served: list[tuple[str, float, float]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    roomless: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(TURN, self.most_started)

    def add(self, name: str, lane: Lane, seconds: float = 1e9, joins: bool = False) -> None:
        self.scheduler.add(name, lane, joins)
        self.left[name], self.lanes[name] = seconds, lane

    def step(self, seconds: float = STEP) -> str | None:
        name = self.scheduler.choose(lambda one: one not in self.refused)
        while name in self.roomless:
            assert self.scheduler.no_room()
            name = self.scheduler.choose(lambda one: one not in self.refused)
        if name is None:
            return None
        self.scheduler.started(name)
        self.scheduler.ran(seconds)
        self.served.append((name, self.now, seconds))
        self.now += seconds
        self.left[name] -= seconds
        if self.left[name] <= 0:
            self.end(name)
        return name

    def end(self, name: str) -> None:
        self.scheduler.remove(name)
        del self.left[name]

    def steps(self, count: int) -> list[str | None]:
        return [self.step() for _ in range(count)]

    def share(self, lane: Lane) -> float:
        return sum(seconds for name, _, seconds in self.served if self.lanes[name] == lane)


def test_a_request_alone_has_the_engine_to_its_end() -> None:
    desk = Desk()
    desk.add("a", "A", 2.0)
    assert desk.steps(5) == ["a"] * 4 + [None]
    assert len(desk.scheduler) == 0


def test_two_conversations_take_turns_and_one_is_served_in_order() -> None:
    desk = Desk()
    for name, lane in (("a1", "A"), ("a2", "A"), ("b1", "B")):
        desk.add(name, lane, 2.0)
    assert desk.steps(12) == ["a1", "a1", "b1", "b1", "a1", "a1", "b1", "b1", *["a2"] * 4]


def test_a_short_newcomer_does_not_wait_for_a_long_prompt() -> None:
    desk = Desk()
    desk.add("long", "A")
    desk.steps(101)
    desk.add("title", "T", 0.7)
    assert desk.steps(4) == ["long", "title", "title", "long"]


def test_newcomers_that_follow_each_other_do_not_starve_an_old_request() -> None:
    desk = Desk()
    desk.add("old", "old")
    for i in range(400):
        # There are always two of them, and each is served within one turn.
        while len(desk.left) < 3:
            desk.add(f"n{i}.{len(desk.left)}", f"N{i}.{len(desk.left)}", 0.9)
        desk.step()
    assert desk.share("old") >= 0.33 * desk.now


def test_the_main_session_has_its_fair_part_beside_four_chatty_sub_agents() -> None:
    desk = Desk()
    desk.add("main", "main")
    for turn in range(600):
        for agent in range(4):
            if not any(lane == agent for name, lane in desk.lanes.items() if name in desk.left):
                desk.add(f"{agent}.{turn}", agent, 1.7)
        desk.step()
        assert desk.share("main") >= desk.now / 5 - (TURN + STEP)
    assert desk.share("main") >= desk.now / 5 * 0.99


def test_time_without_requests_gives_no_claim_and_time_ahead_is_not_forgotten() -> None:
    desk = Desk()
    desk.add("a", "A")
    desk.steps(100)
    desk.add("b", "B")
    first = desk.steps(8)
    assert first.count("b") == 4
    # Whoever leaves ahead of the others comes back ahead of them.
    for _ in range(2):
        desk.step(5.0)
    assert desk.step() == "b" or desk.step() == "a"


def test_no_more_requests_are_started_than_may_be_and_the_next_one_follows() -> None:
    desk = Desk(most_started=2)
    for name in "abc":
        desk.add(name, name, 2.0)
    assert set(desk.steps(5)) == {"a", "b"}
    assert desk.scheduler.running() == ["a", "b"]
    assert desk.scheduler.queue() == ["c"]
    assert desk.steps(4) == ["a", "b", "b", "c"]


def test_what_waits_for_a_sibling_is_passed_over_and_runs_as_soon_as_it_may() -> None:
    desk = Desk(refused={"twin"})
    desk.add("first", "A")
    desk.add("twin", "B")
    assert set(desk.steps(10)) == {"first"}
    desk.refused.clear()
    # It did not save up the turns that it could not use.
    assert desk.steps(6) == ["twin", "twin", "first", "first", "twin", "twin"]


def test_without_room_nothing_starts_until_a_request_ends_and_then_the_first_one_is_tried() -> None:
    desk = Desk(roomless={"big"})
    desk.add("runs", "A", 3.0)
    desk.step()
    desk.add("big", "B", 1.0)
    assert desk.steps(3) == ["runs"] * 3
    desk.add("small", "C", 1.0)
    assert desk.steps(1) == ["runs"]
    desk.roomless.clear()
    assert desk.steps(5) == ["runs", "big", "big", "small", "small"]


def test_one_that_finds_no_room_while_nobody_else_has_any_never_will() -> None:
    desk = Desk()
    desk.add("big", "B")
    assert desk.scheduler.choose(lambda _: True) == "big"
    assert not desk.scheduler.no_room()


def test_a_cancelled_request_is_forgotten_wherever_it_stands() -> None:
    desk = Desk()
    for name in ("a1", "a2", "a3"):
        desk.add(name, "A", 2.0)
    desk.step()
    desk.end("a2")
    desk.end("a1")
    assert desk.step() == "a3"


def test_answers_to_one_prompt_take_the_turns_of_their_lane_by_turns() -> None:
    desk = Desk()
    desk.add("a0", "A")
    desk.step()
    for name, lane in (("a1", "A"), ("a2", "A"), ("b", "B")):
        desk.add(name, lane, joins=lane == "A")
    desk.step()
    assert desk.steps(24)[::2] == ["b", "a1", "b", "a2", "b", "a0"] * 2
    assert desk.share("A") - desk.share("B") == TURN


def test_the_next_request_of_a_lane_waits_for_all_answers_to_the_one_before() -> None:
    desk = Desk()
    for name, seconds, joins in (("a0", 0.5, False), ("a1", 3.0, True), ("next", 0.5, False)):
        desk.add(name, "A", seconds, joins)
    assert desk.steps(8) == ["a0", *["a1"] * 6, "next"]


def test_an_answer_that_can_not_start_lets_the_others_of_its_prompt_go_on() -> None:
    desk = Desk()
    for number in range(3):
        desk.add(f"a{number}", "A", joins=number > 0)
    desk.refused = {"a1", "a2"}
    assert desk.steps(4) == ["a0"] * 4
    desk.refused = {"a1"}
    assert desk.steps(4) == ["a2", "a2", "a0", "a0"]


def test_many_answers_leave_other_lanes_the_right_to_start() -> None:
    desk = Desk(most_started=2)
    for number in range(8):
        desk.add(f"a{number}", "A", joins=number > 0)
    assert set(desk.steps(8)) == {"a0", "a1"}
    desk.add("b", "B", 0.5)
    assert "b" in desk.steps(3)
    desk.add("c", "C", 0.5)
    assert "c" in desk.steps(5)


def test_the_queue_is_told_in_the_order_of_turns() -> None:
    desk = Desk()
    for name, lane in (("a1", "A"), ("a2", "A"), ("a3", "A"), ("b1", "B"), ("b2", "B")):
        desk.add(name, lane)
    desk.step()
    assert desk.scheduler.queue() == ["b1", "b2", "a2", "a3"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"session_id": "s"}, {"session_id": "s"}, True),
        ({"session_id": "s"}, {"session_id": "t"}, False),
        ({"session_id": "s"}, {"session_id": "s", "namespace": "n"}, False),
        (
            {"messages": ("system a", "user b")},
            {"messages": ("system a", "user b", "assistant c", "user d")},
            True,
        ),
        ({"messages": ("system a", "user b")}, {"messages": ("system a", "user c")}, False),
        ({"prompt": "a"}, {"prompt": "b"}, True),
        ({"prompt": "a"}, {"prompt": "a", "namespace": "n"}, False),
        ({"session_id": "s"}, {"session_id": "s", "choice": 1}, True),
        ({"messages": ("system a", "user b")}, {"messages": ("system a", "user b"), "choice": 3}, True),
    ],
)
def test_a_lane_is_a_session_or_what_a_conversation_began_with(
    one: dict[str, object], other: dict[str, object], same: bool
) -> None:
    assert (lane_of(request(**one)) == lane_of(request(**other))) is same


def request(messages: tuple[str, ...] = (), **fields: object) -> GenerateRequest:
    parts = [text.split(" ") for text in messages]
    return GenerateRequest("r", tuple(Message(role, text) for role, text in parts), **fields)  # type: ignore[arg-type]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("add", "join")), st.integers(0, 4), st.floats(0.1, 4.0)),
        st.tuples(st.just("step"), st.integers(0, 4), st.floats(0.01, STEP)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0.0)),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(1, 4))
def test_invariants_of_any_history(actions: list[tuple[str, int, float]], most: int) -> None:
    desk = Desk(most_started=most)
    teams: dict[Lane, list[list[str]]] = {lane: [] for lane in range(5)}
    for number, (action, which, seconds) in enumerate(actions):
        if action in ("add", "join"):
            name, joins = f"r{number}", action == "join"
            desk.add(name, which, seconds, joins)
            alive = [team for team in teams[which] if any(one in desk.left for one in team)]
            if joins and alive:
                alive[-1].append(name)
            else:
                teams[which].append([name])
        elif action == "cancel":
            if desk.left:
                desk.end(sorted(desk.left)[which % len(desk.left)])
        else:
            waiting = dict(desk.left)
            name = desk.step(seconds)
            # Somebody runs whenever somebody waits, and it is of the first team of its lane.
            assert (name is None) == (not waiting)
            if name is not None:
                lane = teams[desk.lanes[name]]
                assert name in next(team for team in lane if any(one in waiting for one in team))
        known = desk.scheduler.running() + desk.scheduler.queue()
        assert sorted(known) == sorted(desk.left)
        assert len({desk.lanes[one] for one in desk.scheduler.running()}) <= most
        assert len(desk.scheduler.running()) < 2 * most


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, STEP), min_size=20, max_size=200), st.integers(2, 6), st.data())
def test_lanes_that_always_have_work_are_never_further_apart_than_a_turn_and_a_step(
    steps: list[float], lanes: int, data: st.DataObject
) -> None:
    desk = Desk()
    for lane in range(lanes):
        desk.add(f"{lane}", lane)
    late_at = data.draw(st.integers(0, len(steps) - 1))
    for number, seconds in enumerate(steps):
        if number == late_at:
            desk.add("late", "late", 0.01)
        desk.step(seconds)
        shares = [desk.share(lane) for lane in range(lanes)]
        assert max(shares) - min(shares) <= TURN + STEP + 1e-9
    came = sum(steps[:late_at])
    first = next((at for name, at, _ in desk.served if name == "late"), desk.now)
    assert first - came <= lanes * (TURN + STEP) + 1e-9
