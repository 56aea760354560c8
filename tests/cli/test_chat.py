"""run: questions, pipes and conversations with the built-in reference model."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from agentserve.cli.chat import timings_text
from cli_process import COMMAND, Cli

END_OF_INPUT = b"\x04"


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


def test_bytes_that_are_no_text_are_replaced_and_counted(cli: Cli) -> None:
    cli("up")

    def ask(*arguments: str | bytes, stdin: bytes = b"") -> tuple[int, str]:
        command = [*COMMAND, "run", "--max-tokens", "1", *arguments]
        done = subprocess.run(
            command, env=cli.environment, input=stdin, capture_output=True, timeout=60, check=False
        )
        return done.returncode, done.stderr.decode()

    code, said = ask("what is it?", stdin="# café, déjà vu".encode("latin-1"))
    assert code == 0
    assert said.startswith("Not UTF-8: 3 bytes of what was piped in, replaced by \ufffd; ")
    code, said = ask(b"caf\xe9?")
    assert code == 0
    assert said.startswith("Not UTF-8: 1 byte of the question, ")
    code, said = ask("what is it?", stdin="# café \ufffd".encode())
    assert (code, "Not UTF-8" in said) == (0, False)


def test_standard_streams_that_are_closed_are_no_crash(cli: Cli) -> None:
    cli("up")

    def ask(redirection: str) -> subprocess.CompletedProcess[str]:
        script = f'exec "$@" {redirection}'
        command = ["bash", "-c", script, "bash", *COMMAND, "run", "hi", "--max-tokens", "1"]
        return subprocess.run(
            command, env=cli.environment, text=True, capture_output=True, timeout=60, check=False
        )

    assert (ask("<&-").returncode, ask("2>&-").returncode) == (0, 0)
    deaf = ask(">&-")
    assert (deaf.returncode, deaf.stderr) == (
        1,
        "Error: Standard output is closed; the answer has nowhere to go\n",
    )


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
    with conversation(cli, "--max-tokens", "4") as talk:
        talk.until(b"Talking with reference")
        for _ in range(2):
            talk.until(b"\n> ")
            talk.type(b"hello\n")
        talk.until(b"\n> ")
        talk.type(END_OF_INPUT)
        assert talk.process.wait(timeout=60) == 0
    counts = cli.client().status().requests
    assert counts.done == 2
    assert counts.prompt_tokens > 2 * 10, "the second question carries the first one and its answer"


def test_ctrl_c_stops_an_answer_or_drops_a_line_and_the_conversation_goes_on(cli: Cli) -> None:
    cli("up", "--reference-step", "0.2")
    with conversation(cli) as talk:
        talk.until(b"\n> ")
        talk.type(b"a line that nobody")
        talk.until(b"nobody")
        talk.interrupt_until(b"\n> ")
        talk.type(b"hello\n")
        wait_until(lambda: cli.client().status().requests.active == 1)
        talk.interrupt_until(b"(stopped)\r\n> ")
        talk.type(END_OF_INPUT)
        assert talk.process.wait(timeout=60) == 0
    wait_until(lambda: cli.client().status().requests.cancelled == 1)
    assert cli.client().status().requests.received == 1, "the line that was dropped was not asked"


@dataclass
class Conversation:
    """`run` in a terminal; `terminal` is the other end of it, `unread` what came after the last mark."""

    process: subprocess.Popen[bytes]
    terminal: int
    unread: bytes = b""

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def until(self, mark: bytes) -> None:
        """Reads what is shown up to `mark`."""
        while mark not in self.unread:
            self._read()
        self.unread = self.unread.partition(mark)[2]

    def interrupt_until(self, mark: bytes) -> None:
        """Ctrl-C, again when nothing comes of it: between two keys readline looks for signals late."""
        while mark not in self.unread:
            self.process.send_signal(signal.SIGINT)
            while mark not in self.unread and select.select([self.terminal], [], [], 1.0)[0]:
                self._read()
        self.unread = self.unread.partition(mark)[2]

    def _read(self) -> None:
        try:
            self.unread += os.read(self.terminal, 4096)
        except OSError:
            pytest.fail(f"the conversation ended with {self.unread!r}")


@contextmanager
def conversation(cli: Cli, *options: str) -> Iterator[Conversation]:
    """`run` without a question, ended with the block."""
    outer, inner = pty.openpty()
    command = [*COMMAND, "run", *options]
    process = subprocess.Popen(command, env=cli.environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    try:
        yield Conversation(process, outer)
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


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
