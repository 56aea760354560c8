"""run: questions, pipes and conversations with the built-in reference model."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest
from agentserve.cli.chat import timings_text
from cli_process import COMMAND, Cli


def test_a_question_starts_the_daemon_and_streams_an_answer(cli: Cli) -> None:
    done = cli("run", "hello", "--max-tokens", "8", "--temperature", "0", "--timings")
    assert done.returncode == 0, done.stderr
    assert "agentserve is not running; starting it" in done.stderr
    assert re.search(r"first token after \d+\.\d\d s, then .* \(\d+ tokens\)", done.stderr)
    assert done.stdout.strip()
    assert cli.client().status().requests.done == 1


def test_what_is_piped_in_is_added_to_the_question(cli: Cli) -> None:
    def prompt_tokens(*arguments: str, stdin: str) -> int:
        before = cli.client().status().requests.prompt_tokens
        assert cli("run", *arguments, "--max-tokens", "1", stdin=stdin).returncode == 0
        return cli.client().status().requests.prompt_tokens - before

    cli("up")
    question, piped = "What is this?", "def add(left, right): ..."
    alone = prompt_tokens(question, stdin="")
    both = prompt_tokens(question, stdin=piped)
    assert both > alone
    assert prompt_tokens(stdin=f"{question}\n\n{piped}\n") == both


def test_a_model_that_is_not_there_is_code_1_in_the_daemons_words(cli: Cli) -> None:
    cli("up")
    done = cli("run", "hello", "--model", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert "nothing" in done.stderr


def test_an_answer_that_hits_its_limit_says_so(cli: Cli) -> None:
    cli("up")
    for seed in range(20):
        done = cli("run", f"question {seed}", "--max-tokens", "1")
        if done.stderr:
            break
    assert "cut at its token limit" in done.stderr


def test_a_conversation_goes_on_until_the_end_of_input(cli: Cli) -> None:
    cli("up")
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", "--max-tokens", "4"], env=cli.environment, stdin=inner, stdout=inner, stderr=inner
    )
    os.close(inner)
    seen = read_until(outer, b"Ctrl-D ends")
    for _ in range(2):
        seen += read_until(outer, b"> ")
        os.write(outer, b"hello\n")
    seen += read_until(outer, b"\n> ")
    os.write(outer, b"\x04")
    while chunk := read_some(outer):
        seen += chunk
    assert process.wait(timeout=60) == 0
    os.close(outer)
    assert b"Talking with reference" in seen
    counts = cli.client().status().requests
    assert counts.done == 2
    assert counts.prompt_tokens > 2 * 10, "the second question carries the first one and its answer"


def read_until(descriptor: int, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        chunk = read_some(descriptor)
        assert chunk, f"{mark!r} never came: {seen!r}"
        seen += chunk
    return seen


def read_some(descriptor: int) -> bytes:
    """What the terminal shows next; nothing when the process has gone."""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("tokens", "first_s", "total_s", "text"),
    [
        (11, 0.5, 2.5, "first token after 0.50 s, then 5.0 tokens/s (11 tokens)"),
        (1, 0.5, 0.5, "first token after 0.50 s, then too short to measure (1 tokens)"),
    ],
)
def test_speed_counts_the_tokens_after_the_first(
    tokens: int, first_s: float, total_s: float, text: str
) -> None:
    assert timings_text(tokens, first_s, total_s) == text
