"""bench: on the reference model, which needs no weights and is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentserve.cli.cpu import this_cpu
from cli_process import Cli

QUICK = ("bench", "--prompt", "64,160", "--decode", "4", "--repeats", "1")


def report(cli: Cli, *arguments: str) -> dict[str, Any]:
    done = cli(*QUICK, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_measures_the_engine_at_each_length_and_http_against_it(cli: Cli) -> None:
    found = report(cli)
    assert [one["prompt_tokens"] for one in found["prefill"]] == [64, 160]
    assert [one["prompt_tokens"] for one in found["decode"]] == [64, 160]
    assert all(one["best"] >= one["median"] > 0 for one in found["prefill"] + found["decode"])
    streaming = found["streaming"]
    assert streaming["daemon"] == "temporary"
    assert streaming["completion_tokens"] > 1
    assert streaming["ratio"] == pytest.approx(
        streaming["http_tokens_per_s"] / streaming["engine_tokens_per_s"]
    )
    assert min(streaming["engine_first_token_s"], streaming["http_first_token_s"]) > 0
    assert found["model"]["name"] == "reference"
    assert not cli.is_running()


def test_it_measures_a_running_daemon_and_leaves_it_running(cli: Cli) -> None:
    assert cli("up").returncode == 0
    done = cli(*QUICK, "--json")
    found = json.loads(done.stdout)
    assert found["streaming"]["daemon"] == "running"
    assert "daemon" not in done.stderr, "none is started"
    assert cli.client().status().requests.done >= 2
    records = json.loads(cli("requests", "--json").stdout)
    assert {one["draft_tokens"] for one in records} == {0}, "the loop that it is compared with drafts nothing"


def test_without_http_it_shows_a_table_and_says_which_length_does_not_fit(cli: Cli) -> None:
    done = cli("bench", "--no-http", "--prompt", "64,99999", "--decode", "4", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["64"]] == ["prefill", "decode"]
    assert "99999 tokens and the answer do not fit the context of this model" in done.stdout
    assert "streaming" not in done.stdout


@pytest.mark.parametrize("lengths", ["", "512,", "0", "many"])
def test_a_bad_list_of_lengths_is_refused(cli: Cli, lengths: str) -> None:
    done = cli("bench", "--prompt", lengths)
    assert done.returncode == 2
    assert "is not a list of lengths" in done.stderr


def test_a_model_that_is_not_in_the_store_is_refused_with_advice(cli: Cli) -> None:
    done = cli("bench", "--model", "smollm2", AGENTSERVE_MOCK="")
    assert done.returncode == 1
    assert "get it with `agentserve pull smollm2`" in done.stderr


def test_a_damaged_model_file_ends_with_the_engines_reason(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    answers, code = engine_lines({"name": "bad", "model_path": str(file)})
    assert code == 1
    assert list(answers[0]) == ["error"]
    assert answers[0]["error"]


def test_the_engine_gives_another_passage_for_each_index_and_measures_its_full_length() -> None:
    passage = {"do": "passage", "tokens": 100}
    _, first, second, timed = engine_lines(
        {"name": "reference", "model_path": None},
        {**passage, "index": 0},
        {**passage, "index": 1},
        {"do": "complete", "tokens": list(range(40, 72)), "new": 200},
    )[0]
    assert len(first["tokens"]) == len(second["tokens"]) == 100
    assert first["text"] != second["text"]
    # Longer than the reference model's answers are: their end-of-turn tokens do not end a measurement.
    assert (timed["prompt_tokens"], timed["completion_tokens"], timed["cached_tokens"]) == (32, 200, 0)


def test_the_same_prompt_is_computed_again_in_every_measurement() -> None:
    prompt = {"do": "complete", "tokens": list(range(40, 140)), "new": 2}
    _, *timed = engine_lines({"name": "reference", "model_path": None}, prompt, prompt)[0]
    assert [one["cached_tokens"] for one in timed] == [0, 0]


def test_the_cpu_is_described_by_its_name_and_the_instructions_that_matter(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512_vnni\n\nprocessor\t: 1\n"
    )
    cpu = this_cpu(file)
    assert (cpu.name, cpu.instruction_sets) == ("Some CPU", ("avx2", "avx512_vnni"))
    assert cpu.cores >= 1


def engine_lines(*commands: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The answers of `agentserve.engine.bench` to these lines, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agentserve.engine.bench"],
        input="".join(json.dumps(command) + "\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode
