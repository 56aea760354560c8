"""Which request has the engine next: pure policy, without a clock, a thread or a tensor.

Requests that belong together (a lane: one conversation) are served one after the other, in the order of their arrival;
answers to one prompt (a team) take the turns of their lane by turns. Between lanes the engine's time is shared. Each lane has a clock that runs only while the lane has the engine, and the
lane whose clock is furthest behind is next:

    who has the engine keeps it for a turn, unless nothing else can run; turns change between two steps
    a lane that appears starts where its clock would be had it had its fair part all along, and no more than that:
    it has no claim to time in which it asked for nothing
    a lane that could not use its turn, because it waits for room or for a sibling, loses it
    of equal clocks the lane that has waited longest is first

So among lanes that always have work no one gets ahead of another by more than a turn and a step, and a newcomer has
its first turn after at most one turn of each other lane (docs/scheduling.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import chain

from ..protocol import GenerateRequest

Lane = Hashable


def lane_of(request: GenerateRequest) -> Lane:
    """The lane of a request: its session, else what its conversation began with, up to the first user message.

    Prompts that are no conversation share one lane in each namespace. Further answers to a prompt are in its lane.
    """
    if request.session_id is not None:
        return request.namespace, request.session_id
    first = next((i for i, message in enumerate(request.messages) if message.role == "user"), 0)
    return request.namespace, request.messages[: first + 1]


@dataclass(slots=True)
class _Waiting:
    """The requests of one lane, in teams, and the seconds that the lane has had the engine.

    The teams are served one after the other; in the first one, whoever has waited longest for a turn is first.
    """

    clock: float
    teams: list[list[str]] = field(default_factory=list)

    def add(self, name: str, joins: bool) -> None:
        """`joins` the team that came last, if there is one."""
        if joins and self.teams:
            self.teams[-1].append(name)
        else:
            self.teams.append([name])

    def remove(self, name: str) -> None:
        for team in self.teams:
            if name in team:
                team.remove(name)
        self.teams = [team for team in self.teams if team]


class Scheduler:
    """Decides between requests that it knows by name. `turn_seconds` is the least that a turn lasts.

    Requests of at most `most_started` lanes are started, which is when they take their room in the KV cache. A second
    one of a lane starts only while fewer requests than that are, so that a team leaves room for other lanes.
    """

    def __init__(self, turn_seconds: float, most_started: int) -> None:
        self._turn_seconds = turn_seconds
        self._most_started = most_started
        self._lanes: dict[Lane, _Waiting] = {}
        self._lane_of: dict[str, Lane] = {}
        self._started: set[str] = set()
        # Those of them that wait for room to grow.
        self._stalled: set[str] = set()
        # Clocks of lanes that have nothing to do, as far as they are ahead.
        self._gone_ahead: dict[Lane, float] = {}
        # Advances by what each lane should have had of the time (the virtual time of fair queueing).
        self._fair_clock = 0.0
        self._has_room = True
        self._holder: str | None = None
        self._turns = 0
        # The number of the last turn of each request that has had one.
        self._last_turn: dict[str, int] = {}
        self._used = 0.0

    def __len__(self) -> int:
        return len(self._lane_of)

    def add(self, name: str, lane: Lane, joins: bool = False) -> None:
        """A request has arrived; it `joins` the one before it in its lane, or waits until that has ended."""
        assert name not in self._lane_of, "a request arrives once"
        waiting = self._lanes.get(lane)
        if waiting is None:
            clock = max(self._entry_clock(), self._gone_ahead.pop(lane, 0.0))
            waiting = self._lanes[lane] = _Waiting(clock)
        waiting.add(name, joins)
        self._lane_of[name] = lane

    def remove(self, name: str) -> None:
        """A request has ended, or is not wanted any more."""
        lane = self._lane_of.pop(name)
        waiting = self._lanes[lane]
        waiting.remove(name)
        self._started.discard(name)
        self._last_turn.pop(name, None)
        self._stalled.clear()
        self._has_room = True
        if name == self._holder:
            self._holder = None
        if not waiting.teams:
            self._close(lane)

    def choose(self, may_start: Callable[[str], bool]) -> str | None:
        """Who has the engine for the next step; None when nobody wants it.

        `may_start` is asked about requests that have not started. It may refuse only while another one has.
        """
        if self._holder is not None and self._used < self._turn_seconds:
            return self._holder
        passed: list[_Waiting] = []
        for waiting in sorted(self._lanes.values(), key=lambda one: one.clock):
            team = sorted(waiting.teams[0], key=lambda one: self._last_turn.get(one, 0))
            name = next((one for one in team if self._can_run(one, may_start)), None)
            if name is None:
                passed.append(waiting)
                continue
            for other in passed:
                other.clock = waiting.clock
            self._fair_clock = max(self._fair_clock, waiting.clock)
            self._turns += 1
            self._last_turn[name] = self._turns
            self._holder, self._used = name, 0.0
            return name
        return None

    def started(self, name: str) -> None:
        """The request has taken its room."""
        self._started.add(name)

    def no_room(self) -> bool:
        """The one that was chosen found no room. Nothing starts until a request ends; False if none has started."""
        self._has_room, self._holder = not self._started, None
        return not self._has_room

    def stall(self, name: str) -> bool:
        """The one that was chosen can't go on until a request ends. False if no other one that has started can."""
        self._stalled.add(name)
        self._holder = None
        return bool(self._started - self._stalled)

    def ran(self, seconds: float) -> None:
        """The request chosen last has had the engine for so long."""
        assert self._holder is not None, "somebody has the engine"
        self._lanes[self._lane_of[self._holder]].clock += seconds
        self._fair_clock += seconds / len(self._lanes)
        self._used += seconds

    def running(self) -> list[str]:
        """Requests that have started, in the order of their arrival."""
        return [name for name in self._lane_of if name in self._started]

    def queue(self) -> list[str]:
        """Requests that have not started, about in the order in which they will."""
        turns = [
            (place, waiting.clock, name)
            for waiting in self._lanes.values()
            for place, name in enumerate(chain.from_iterable(waiting.teams))
        ]
        turns.sort(key=lambda turn: turn[:2])
        return [name for _, _, name in turns if name not in self._started]

    def _can_run(self, name: str, may_start: Callable[[str], bool]) -> bool:
        if name in self._started:
            return name not in self._stalled
        return self._has_room and self._may_begin(self._lane_of[name]) and may_start(name)

    def _may_begin(self, lane: Lane) -> bool:
        lanes = {self._lane_of[name] for name in self._started}
        return len(self._started if lane in lanes else lanes) < self._most_started

    def _entry_clock(self) -> float:
        return min(self._fair_clock, max((one.clock for one in self._lanes.values()), default=math.inf))

    def _close(self, lane: Lane) -> None:
        self._gone_ahead[lane] = self._lanes.pop(lane).clock
        for key in [key for key, clock in self._gone_ahead.items() if clock <= self._fair_clock]:
            del self._gone_ahead[key]
