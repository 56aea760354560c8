"""What is loaded when: heavy libraries stay out of processes that don't need them."""

from __future__ import annotations

import subprocess
import sys

import pytest

NATIVE = {"torch", "transformers", "openvino", "tokenizers", "gguf", "llguidance", "numpy"}
TERMINAL = {"textual", "rich", "typer"}
SERVER = {"starlette", "uvicorn", "httpx"}


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after `program`."""
    program += "\nimport sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("cli.app", NATIVE | SERVER | {"textual", "rich"}),
        ("daemon.app", NATIVE | TERMINAL | {"httpx"}),
        ("daemon.server", NATIVE | TERMINAL | {"httpx"}),
        ("daemon.client", NATIVE | TERMINAL | SERVER),
        ("daemon.store.pull", NATIVE | TERMINAL | SERVER),
        ("engine.worker", TERMINAL | SERVER | {"torch", "transformers", "openvino", "llguidance"}),
        ("engine.protocol", NATIVE | TERMINAL | SERVER | {"msgspec"}),
    ],
)
def test_importing_loads_nothing_heavy(module: str, unwanted: set[str]) -> None:
    assert loaded_by(f"import agentserve.{module}") & unwanted == set()


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import contextlib, io, sys\n"
        "from agentserve.cli.app import app\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    app(['up', '--help'])"
    )
    assert loaded_by(program) & (NATIVE | SERVER | {"textual", "rich"}) == set()
