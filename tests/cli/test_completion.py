"""The committed completions are those of the app, and bash takes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from agentserve.cli.completion import commands, scripts

FOLDER = Path(__file__).parents[2] / "completions"


@pytest.mark.parametrize("name", sorted(scripts()))
def test_the_committed_script_is_up_to_date(name: str) -> None:
    committed = (FOLDER / name).read_text("utf-8")
    assert committed == scripts()[name], "run: python -m agentserve.cli.completion completions"


def complete(*words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in ("agentserve", *words))
    program = (
        f"source {FOLDER}/agentserve.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; "
        '_agentserve; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.split()


def test_bash_completes_commands_and_their_options() -> None:
    assert complete("") == [*(command.name for command in commands()), "--version", "--help"]
    assert complete("st") == ["status"]
    assert complete("down", "--n") == ["--now"]
    assert complete("up", "--no-m") == ["--no-mock"]


def test_bash_leaves_arguments_to_file_names() -> None:
    assert complete("pull", "") == []


def test_every_command_has_a_sentence_of_help() -> None:
    assert all(command.help[0].isupper() and len(command.help) > 15 for command in commands())
