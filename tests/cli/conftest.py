"""A home of its own for each test of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    runner = Cli(tmp_path / "home")
    yield runner
    if runner.is_running():
        runner("down", "--now")
    assert not runner.is_running()
