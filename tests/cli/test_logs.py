"""logs: the end of the file, and following it across a rotation."""

from __future__ import annotations

import os
import signal

from cli_process import Cli


def write_log(cli: Cli, text: str) -> None:
    cli.paths.log_dir.mkdir(parents=True, exist_ok=True)
    with cli.paths.daemon_log.open("a") as log:
        log.write(text)


def test_the_last_lines_are_shown_oldest_first(cli: Cli) -> None:
    write_log(cli, "".join(f"line {number}\n" for number in range(100)))
    assert cli("logs", "-n", "3").stdout == "line 97\nline 98\nline 99\n"
    assert len(cli("logs").stdout.splitlines()) == 50


def test_no_log_yet_is_code_1_and_says_where_it_would_be(cli: Cli) -> None:
    done = cli("logs")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(cli.paths.daemon_log) in done.stderr


def test_a_daemon_in_the_foreground_has_no_log_file_and_it_says_so(cli: Cli) -> None:
    process = cli.start("up", "--foreground")
    try:
        assert process.stderr is not None
        assert process.stderr.readline(), "the first line of the log comes once the port is known"
        none = cli("logs")
        assert none.returncode == 1
        assert "The daemon runs in the foreground: its log is in the terminal" in none.stderr
        write_log(cli, "of another day\n")
        os.utime(cli.paths.daemon_log, (0, 0))
        old = cli("logs")
        assert (old.returncode, old.stdout) == (0, "of another day\n")
        assert "The daemon that runs has written nothing here" in old.stderr
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_new_lines_are_followed_across_a_rotation_until_ctrl_c(cli: Cli) -> None:
    write_log(cli, "old\n")
    process = cli.start("logs", "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == "old\n"
    write_log(cli, "added\n")
    assert process.stdout.readline() == "added\n"
    cli.paths.daemon_log.rename(cli.paths.daemon_log.with_suffix(".1"))
    write_log(cli, "after the rotation\n")
    assert process.stdout.readline() == "after the rotation\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_reader_that_closes_early_ends_it_quietly(cli: Cli) -> None:
    write_log(cli, "a long line of the log\n" * 100_000)
    process = cli.start("logs", "-n", "100000")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 141
