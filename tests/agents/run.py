"""Real agents against a real daemon: is there a request that it refuses, or an answer that they do not understand?

    python tests/agents/run.py [--agent NAME] [--cache FOLDER] [--models FOLDER] [--save FOLDER] [--verbose]

Installs opencode, Qwen Code and aider from the package registries, once, and lets each work in a throw-away
repository, with a home of its own and with proxies that lead nowhere: after the installation none needs anything but
the daemon. Each has two turns of one conversation with SmolLM2, and two with a model that says what it is told:
an order that makes the agent use a tool or edit a file, and a farewell.

Prints a line for each turn, with what all of its requests together took. Ends with 1 when a request got anything but a
good answer, a program ended with an error or showed no reply, or an order came to nothing. `--save` keeps the bodies
without the agents' texts, as test_recorded.py has some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agent import SMALL_REPLY
from agentserve.daemon.records.records import human_line
from aider import AIDER
from daemon_process import DaemonProcess, daemon_process
from installing import InstallError
from opencode import OPENCODE
from platformdirs import user_cache_path
from qwen_code import QWEN_CODE
from recorder import recording
from reducing import reduced
from rich.console import Console
from rich.table import Table
from scene import Scene
from turn import HEADINGS, Turn

AGENTS = {"opencode": OPENCODE, "qwen-code": QWEN_CODE, "aider": AIDER}
_ROOT = Path(__file__).parents[2]


def _smollm2(home: Path, models: Path) -> AbstractContextManager[DaemonProcess]:
    # aider sets no limit, and such a small model may not come to an end before its context does.
    config = f'model = "smollm2"\nmax_output_tokens = {SMALL_REPLY}'
    return daemon_process(home, config, AGENTSERVE_MODELS=str(models))


def _scripted(home: Path, _models: Path) -> AbstractContextManager[DaemonProcess]:
    worker = (str(Path(__file__).with_name("roomy_worker.py")), "hermes")
    return daemon_process(home, "mock = true", worker)


SCENES: dict[str, Callable[[Path, Path], AbstractContextManager[DaemonProcess]]] = {
    "smollm2": _smollm2,
    "reference": _scripted,
}


def _scenes(programs: dict[str, Path], models: Path) -> Iterator[Scene]:
    """Each scene once all agents have played in it."""
    with tempfile.TemporaryDirectory(prefix="agentserve-agents-") as temporary:
        for model, start in SCENES.items():
            folder = Path(temporary) / model
            with start(folder / "daemon", models) as daemon, recording(daemon.url) as recorder:
                scene = Scene(model, daemon, recorder)
                for name, where in programs.items():
                    print(f"{name} with {model} …", file=sys.stderr, flush=True)
                    scene.play(AGENTS[name], scene.place(AGENTS[name], where, folder / name))
                yield scene


def _report(turns: Sequence[tuple[Turn, list[str]]], *, verbose: bool) -> None:
    table = Table(*HEADINGS, box=None)
    for turn, faults in turns:
        table.add_row(*turn.row("; ".join(faults) or "ok"))
        if faults or verbose:
            print(f"--- {turn.agent}, {turn.model}, {turn.kind}\n{turn.ran.output}", file=sys.stderr)
            print(*map(human_line, turn.records), sep="\n", file=sys.stderr)
    Console(width=200, highlight=False).print(table)


def _save(folder: Path, turns: Sequence[tuple[Turn, list[str]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for turn, _ in turns:
        for number, body in enumerate(turn.bodies, 1):
            name = f"{turn.agent} {turn.model} {turn.kind} {number}".lower().replace(" ", "-")
            (folder / f"{name}.json").write_text(json.dumps(reduced(body), indent=1) + "\n")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--agent", action="append", choices=AGENTS, help="all of them when left out; may be repeated"
    )
    parser.add_argument("--cache", type=Path, default=user_cache_path("agentserve") / "agents")
    parser.add_argument("--models", type=Path, default=os.environ.get("AGENTSERVE_MODELS", _ROOT / ".models"))
    parser.add_argument("--save", type=Path)
    parser.add_argument(
        "--verbose", action="store_true", help="print what the agents printed, and each request"
    )
    options = parser.parse_args()
    try:
        programs = {
            name: AGENTS[name].install(options.cache.absolute() / f"{name}-{AGENTS[name].version}")
            for name in options.agent or AGENTS
        }
    except InstallError as error:
        sys.exit(f"error: {error}")
    turns, wrong = list[tuple[Turn, list[str]]](), list[str]()
    for scene in _scenes(programs, options.models.absolute()):
        turns += scene.turns
        wrong += filter(None, [scene.miscounted()])
    _report(turns, verbose=options.verbose)
    if options.save:
        _save(options.save, turns)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong or any(faults for _, faults in turns) else 0


if __name__ == "__main__":
    sys.exit(main())
