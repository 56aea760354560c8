"""The short version of `python tests/chaos.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import WAYS, chaos
from cli_process import Cli


@pytest.mark.chaos
def test_nothing_is_left_of_clients_that_misbehave_and_workers_that_are_killed(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    try:
        outcome = chaos(cli, seconds=30, kill_every=5, clients=12, seed=1)
    finally:
        cli("down", "--now")
    assert outcome.wrong == []
    assert set(outcome.done) == {*(way.__name__ for way in WAYS), "killed workers"}
