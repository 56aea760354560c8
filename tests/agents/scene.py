"""A daemon, and agents that work with it one after the other."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from agent import Agent, Place
from agentserve.daemon.client import DaemonClient
from agentserve.daemon.snapshot import RequestRecord
from daemon_process import DaemonProcess
from prometheus_client.parser import text_string_to_metric_families
from recorder import Recorder
from repository import make_repository
from turn import Turn, run

_QUESTIONS = {
    "question": "Say in one sentence what greeter.py does.",
    "next": "Now say in one sentence what README.md is for.",
}
_FAREWELL = "Say farewell. <reply>Fare well.</reply>"
_NOWHERE = "http://127.0.0.1:9"


@dataclass
class Scene:
    """What was played so far: each turn, and what is wrong with it."""

    model: str
    daemon: DaemonProcess
    recorder: Recorder
    seen: int = 0
    turns: list[tuple[Turn, list[str]]] = field(default_factory=list)

    def place(self, agent: Agent, programs: Path, folder: Path) -> Place:
        """A fresh home and repository."""
        folder.mkdir(parents=True)
        repository = make_repository(folder / "repository")
        small = self.model == "smollm2"
        return Place(programs, folder / "home", repository, self.recorder.base_url, self.model, small)

    def play(self, agent: Agent, place: Place) -> None:
        """All turns of an agent here."""
        environment = {**_surroundings(place), **agent.settle(place)}
        prompts = _QUESTIONS if place.small else {"order": agent.order(place), "farewell": _FAREWELL}
        for kind, prompt in prompts.items():
            goes_on = kind != next(iter(prompts))
            ran = run(agent.command(place, prompt, goes_on), place.repository, environment)
            records = self._new_records()
            turn = Turn(f"{agent.name} {agent.version}", self.model, kind, ran, self.recorder.take(), records)
            unmet = agent.unmet(place, turn.bodies) if kind == "order" else None
            self.turns.append((turn, [*turn.faults(), *filter(None, [unmet])]))

    def _new_records(self) -> list[RequestRecord]:
        """The records since the last call, once all requests have ended."""
        client = DaemonClient("127.0.0.1", self.daemon.port)
        next(snapshot for snapshot in client.snapshots() if not snapshot.running)
        records = [record for record in client.requests(limit=1000) if record.number > self.seen]
        self.seen = max((record.number for record in records), default=self.seen)
        return records

    def miscounted(self) -> str | None:
        """None if the daemon counted the same statuses that the recorder saw."""
        text = httpx.get(f"{self.daemon.url}/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        counted = Counter[str]()
        for sample in families["agentserve_requests"].samples:
            if sample.name.endswith("_total") and sample.labels["endpoint"].startswith("/v1/"):
                counted[sample.labels["status"]] += int(sample.value)
        seen = Counter(str(exchange.status) for turn, _ in self.turns for exchange in turn.exchanges)
        return None if counted == seen else f"{self.model}: the daemon counts {counted}, the recorder {seen}"


def _surroundings(place: Place) -> dict[str, str]:
    """All that an agent inherits."""
    place.home.mkdir()
    return {
        "PATH": f"{place.programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place.home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    }
