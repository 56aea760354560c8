"""The daemons that the suites of both SDKs share, each a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from daemon_process import DaemonProcess, daemon_process

WORKERS = Path(__file__).parents[1] / "daemon"
SMOLLM2 = """
model = "smollm2"
exact = true
max_context = 2048

[tool_formats]
smollm2 = "hermes"
"""
Client = Callable[..., openai.OpenAI]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its model says what it is told."""
    home = tmp_path_factory.mktemp("scripted") / "home"
    with daemon_process(home, "mock = true", (str(WORKERS / "scripted_worker.py"), "hermes")) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its worker fails, dies and waits as a request orders."""
    home = tmp_path_factory.mktemp("faulty") / "home"
    with daemon_process(home, "mock = true", (str(WORKERS / "fake_worker.py"),)) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Like `faulty`, and it refuses a second request while one runs."""
    home = tmp_path_factory.mktemp("narrow") / "home"
    config = "mock = true\nmax_queue_depth = 0"
    with daemon_process(home, config, (str(WORKERS / "fake_worker.py"),)) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def real(
    smollm2: Path, all_minilm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """Serves SmolLM2 and all-MiniLM."""
    home = tmp_path_factory.mktemp("real") / "home"
    with daemon_process(home, SMOLLM2, AGENTSERVE_MODELS=os.environ["AGENTSERVE_MODELS"]) as daemon:
        yield daemon


@pytest.fixture
def connect() -> Iterator[Client]:
    """Makes clients of the Python SDK, which ask once unless they are told otherwise."""
    made: list[openai.OpenAI] = []

    def client(daemon: DaemonProcess, **options: object) -> openai.OpenAI:
        chosen = {"max_retries": 0, "timeout": 60, **options}
        made.append(openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="anything", **chosen))  # type: ignore[arg-type]
        return made[-1]

    yield client
    for one in made:
        one.close()
