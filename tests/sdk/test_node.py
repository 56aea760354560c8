"""The official Node SDK against daemons over real sockets: the cases of `node/*.test.mjs`, run once a file.

A title that the file completes (``test(`…: ${name}`)``) is one test here for all of its cases.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_process import DaemonProcess
from sdk_requests import PAINTS, PROSE, SCRIPTED, SMOLLM2

FOLDER = Path(__file__).with_name("node")
_TITLE = re.compile(r"^ *test\(([\"`])(.*?)(?:\1|\$\{)", re.MULTILINE)
Outcomes = dict[str, str | None]
Run = Callable[..., Outcomes]


def titles(name: str) -> list[str]:
    """The titles of a file, as far as they are written out."""
    return [match[2] for match in _TITLE.finditer((FOLDER / name).read_text())]


def sdk_is_installed() -> bool:
    """Whether scripts/setup has put there what package-lock.json asks for."""
    stamp = FOLDER / "node_modules/.installed"
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    return stamp.exists() and stamp.read_text().split() == [lock]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a file against daemons by name, and tells of each case what was wrong with it."""
    if shutil.which("node") is None:
        pytest.skip("node is not on the PATH; the suite of the Node SDK needs it")
    if not sdk_is_installed():
        pytest.skip("the Node SDK is not installed; `scripts/setup test` does it")

    def outcomes(name: str, **daemons: DaemonProcess) -> Outcomes:
        told: dict[str, Any] = {
            "servers": {name: daemon.url for name, daemon in daemons.items()},
            "requests": {
                "scripted": SCRIPTED,
                "smollm2": SMOLLM2,
                "scripted_replies": {"prose": PROSE, "paints": PAINTS},
            },
        }
        done = subprocess.run(
            ["node", "--test-reporter=./reporter.mjs", name],
            cwd=FOLDER,
            env={**os.environ, "SDK_CONFORMANCE": json.dumps(told), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        cases = [json.loads(line) for line in done.stdout.splitlines()]
        assert cases, done.stderr
        return {case["name"]: case["error"] for case in cases}

    return outcomes


@pytest.fixture(scope="session")
def scripted_outcomes(
    run: Run, scripted: DaemonProcess, faulty: DaemonProcess, narrow: DaemonProcess
) -> Outcomes:
    return run("scripted.test.mjs", scripted=scripted, faulty=faulty, narrow=narrow)


@pytest.fixture(scope="session")
def real_outcomes(run: Run, real: DaemonProcess) -> Outcomes:
    return run("smollm2.test.mjs", real=real)


def check(outcomes: Outcomes, title: str) -> None:
    """Every case with the title was run, and nothing was wrong with it."""
    cases = {name: error for name, error in outcomes.items() if name.startswith(title)}
    assert cases, f"no case of this title was run; those that were: {sorted(outcomes)}"
    wrong = [f"{name}\n{error}" for name, error in cases.items() if error is not None]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("title", titles("scripted.test.mjs"))
def test_the_node_sdk(scripted_outcomes: Outcomes, title: str) -> None:
    check(scripted_outcomes, title)


@pytest.mark.model
@pytest.mark.parametrize("title", titles("smollm2.test.mjs"))
def test_the_node_sdk_with_real_models(real_outcomes: Outcomes, title: str) -> None:
    check(real_outcomes, title)


@pytest.mark.parametrize("name", ["scripted.test.mjs", "smollm2.test.mjs"])
def test_every_case_has_a_title_that_is_looked_for(name: str) -> None:
    assert len(titles(name)) == (FOLDER / name).read_text().count("test(") > 0
