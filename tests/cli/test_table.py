"""Tables: whole where a program reads them, as wide as the terminal where a person does."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from agentserve.cli.table import fitted, row_text, shortened, whole
from cli_process import COMMAND, Cli
from tiny_models import write_tiny_gguf

HEADS = ("NAME", "NOTE", "SIZE")
ROW = ("a" * 30, "b" * 30, "12 MB")


def test_a_table_that_fits_is_shown_as_it_is() -> None:
    assert row_text(ROW, fitted(HEADS, (30, 30, 5), 69)) == row_text(ROW, whole((30, 30, 5)))


def test_a_wide_column_is_narrowed_before_a_spare_one_is_left_out() -> None:
    shown = row_text(ROW, fitted(HEADS, (30, 30, 5), 60, ["SIZE"]))
    assert shown == f"{'a' * 30}  {'b' * 10}…{'b' * 10}  12 MB"
    assert len(shown) == 60
    assert row_text(ROW, fitted(HEADS, (30, 30, 5), 44, ["SIZE"])) == f"{'a' * 30}  {'b' * 6}…{'b' * 5}"
    assert row_text(ROW, fitted(HEADS, (30, 30, 5), 40, ["NOTE", "SIZE"])) == f"{'a' * 30}  12 MB"


@pytest.mark.parametrize("room", [20, 40, 60, 80, 100])
def test_no_row_is_wider_than_its_room(room: int) -> None:
    layout = fitted(HEADS, (128, 64, 5), room, ["SIZE"])
    assert len(row_text(("x" * 128, "y" * 64, "12 MB"), layout)) <= room


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc…fg"), ("abcdefg", 5, "ab…fg"), ("abcdefg", 1, "…")],
)
def test_a_long_text_keeps_its_beginning_and_its_end(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown


def in_terminal(cli: Cli, columns: int, *arguments: str) -> list[str]:
    """The lines that a command shows in a terminal of this width."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in cli.environment.items() if key != "COLUMNS"}
    with subprocess.Popen([*COMMAND, *arguments], env=environment, stdin=inner, stdout=inner) as process:
        os.close(inner)
        shown = b"".join(_until_closed(outer))
    os.close(outer)
    assert process.returncode == 0
    return shown.decode().splitlines()


def _until_closed(terminal: int) -> Sequence[bytes]:
    pieces: list[bytes] = []
    while True:
        try:
            pieces.append(os.read(terminal, 4096))
        except OSError:
            # How a terminal says that nobody holds its other end any more.
            return pieces


def test_the_list_of_models_fits_the_terminal_and_is_whole_in_a_pipe(cli: Cli, tmp_path: Path) -> None:
    file, name = tmp_path / "model.gguf", "a-name-of-a-model-that-is-very-long:instruct-q4_k_m"
    write_tiny_gguf(file, "qwen3", seed=1)
    assert cli("pull", f"file:{file}", "--name", name).returncode == 0
    assert name in cli("list", COLUMNS="40").stdout
    for columns in (40, 80, 120):
        heads, row = in_terminal(cli, columns, "list")
        assert max(len(heads), len(row)) <= columns
        assert heads.startswith("NAME")
        assert row.startswith("a-name-of-a")
    assert "CAPABILITIES" in heads, "at 120 columns nothing need be left out"


def test_a_long_request_id_does_not_widen_the_table(cli: Cli) -> None:
    assert cli("up").returncode == 0
    body = {"model": "reference", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    url, name = f"{cli.client().base_url}/chat/completions", "x" * 128
    for headers in ({"X-Request-ID": name}, {}):
        httpx.post(url, json=body, headers=headers, timeout=30).raise_for_status()
    assert name in cli("requests").stdout
    for columns in (40, 80, 120):
        lines = in_terminal(cli, columns, "requests")
        assert len(lines) == 3
        assert max(map(len, lines)) <= columns
        assert lines[0].index("STATE") == lines[1].index("done") == lines[2].index("done")
    ours = cli.client().requests()[0].request_id
    assert ours in lines[1], "an id of ours is whole, so that it can be given to `cancel`"
