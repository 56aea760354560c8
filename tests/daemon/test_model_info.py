"""The engine's description of a file, through the real process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agentserve.daemon.errors import StoreError
from agentserve.daemon.store.model_info import inspect_file
from tiny_models import write_tiny_gguf


def test_a_model_is_described(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", "llama", seed=1)
    info = inspect_file(tmp_path / "tiny.gguf")
    assert info["architecture"] == "llama"
    assert isinstance(info["context_length"], int)
    assert info["has_chat_template"] is True


def test_a_damaged_file_is_refused_with_its_name_and_the_engines_reason(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", "llama", seed=1)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes()[:-5000])
    with pytest.raises(StoreError, match=r"^cut\.gguf can't be used: .*truncated"):
        inspect_file(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo trouble >&2; exit 4", "trouble"),
        ("exit 4", "the reader ended with code 4"),
        ("kill -9 $$", "the reader was ended by signal 9"),
        ("echo '[]'", "the reader ended with code 0"),
    ],
)
def test_a_reader_that_gives_no_answer_is_a_failure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    reader = tmp_path / "reader"
    reader.write_text(f"#!/bin/sh\n{script}\n")
    reader.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(reader))
    with pytest.raises(StoreError, match=f"Reading x failed: {reason}"):
        inspect_file(Path("x"))
