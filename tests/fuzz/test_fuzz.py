"""The short version of `python tests/fuzz/run.py`."""

from __future__ import annotations

from pathlib import Path

from fuzz.run import fuzz


def test_requests_that_nobody_would_write_are_answered_as_the_description_says(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, cases=150, odd=200, seed=1)
    assert outcome.faults == []
    assert outcome.cases >= 350
