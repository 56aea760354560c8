"""status: the lines for people, made from a snapshot, and its cost."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from agentserve.cli.status import describe, duration_text, limits_text, self_test_text
from agentserve.daemon.config import Settings
from agentserve.daemon.snapshot import (
    DrafterCounts,
    DraftStats,
    ModelInfo,
    RequestCounts,
    SelfTest,
    StartupSnapshot,
    StatusSnapshot,
    TierBytes,
    WorkerSnapshot,
)
from cli_process import Cli

MODEL = ModelInfo(
    name="mini:1b",
    architecture="llama",
    device="CPU",
    context_length=8192,
    vocab_size=100,
    parameters=134_500_000,
    weight_bytes=92_000_000,
    kv_bytes_per_token=1,
    kv_budget_bytes=1_000_000_000,
    block_tokens=32,
    exact=False,
    fingerprint="f",
    notes=("the context ends at the sliding window",),
    draft_tokens=15,
)
WORKER = WorkerSnapshot(
    name="mini:1b",
    state="ready",
    load_s=2.04,
    compile_cache_hit=True,
    model=MODEL,
    self_test=SelfTest(True, True, True, 0.4),
    rss_bytes=300_000_000,
    blocks_used=3,
    blocks_cached=9,
    tokens_prefilled=100,
    tokens_reused=300,
    blocks_total=64,
    tokens_generated=50,
    prefill_tokens_per_s=1000.4,
    decode_tokens_per_s=88.84,
    tiers=TierBytes(200_000_000, 1_000_000_000, 50_000_000, 500_000_000, 0, 0),
    drafts=DraftStats(
        steps=6,
        tokens=11,
        emitted=9,
        drafters=(DrafterCounts("suffix", 3, 8, 5, 1), DrafterCounts("guess", 1, 1, 0, 0)),
    ),
)
STATUS = StatusSnapshot(
    version="1.2.3",
    pid=7,
    started_at=0,
    uptime_s=75,
    host="127.0.0.1",
    port=1,
    default_model="mini:1b",
    mock=False,
    draining=False,
    rss_bytes=60_000_000,
    startup=StartupSnapshot("ready"),
    requests=RequestCounts(active=1, queued=2, done=3, cancelled=4, error=5, rejected=6, prompt_tokens=70),
    workers=(WORKER,),
)


def shown(status: StatusSnapshot) -> str:
    return "\n".join(f"{label}|{text}" for label, text in describe(status, "http://127.0.0.1:1/v1"))


def test_every_figure_of_a_loaded_model_is_shown() -> None:
    assert shown(STATUS) == (
        "agentserve|1.2.3, pid 7, up 1 min 15 s\n"
        "address|http://127.0.0.1:1/v1\n"
        "state|ready\n"
        "memory|daemon 60.0 MB, mini:1b 300.0 MB\n"
        "requests|1 active, 2 queued, 3 done, 4 cancelled, 5 failed, 6 rejected\n"
        "tokens|70 prompt (0 cached), 0 generated\n"
        "model|mini:1b: ready\n"
        "|llama on CPU, 134.5 M parameters, context 8192, weights 92.0 MB, exact mode off\n"
        "|loaded in 2.0 s, graph from the cache\n"
        "|KV cache of 64 blocks (1.0 GB): 3 used, 9 remembered\n"
        "|prefixes: 200.0 MB of 1.0 GB in memory, 50.0 MB of 500.0 MB pinned, none on disk\n"
        "|the context ends at the sliding window\n"
        "|self-test passed in 0.40 s\n"
        "|prefix memory: 100 prompt tokens computed, 300 reused (75%)\n"
        "|prefill 1000 tokens/s, decode 88.8 tokens/s\n"
        "|speculation: 1.83 tokens a step, accepted suffix 62% of 8, guess 0% of 1"
    )


def test_what_a_model_writes_beside_text_is_shown() -> None:
    thinking = replace(MODEL, tool_format="hermes", reasoning_format="think")
    text = shown(replace(STATUS, workers=(replace(WORKER, model=thinking),)))
    assert "|tool calls as hermes, reasoning as think\n" in text


def test_speculation_that_is_off_or_was_not_needed_yet_says_so() -> None:
    off = replace(WORKER, model=replace(MODEL, draft_tokens=0))
    assert "|speculation off" in shown(replace(STATUS, workers=(off,)))
    fresh = replace(WORKER, drafts=DraftStats())
    assert "|speculation: up to 15 tokens a step" in shown(replace(STATUS, workers=(fresh,)))


def test_an_embedding_model_has_vectors_and_no_prefixes() -> None:
    embeds = replace(MODEL, architecture="bert", dimensions=384, draft_tokens=0, notes=())
    worker = WorkerSnapshot("mini:1b", "ready", model=embeds, tokens_prefilled=100, tokens_reused=300)
    told = shown(replace(STATUS, workers=(worker,)))
    assert (
        "bert on CPU, 134.5 M parameters, context 8192, weights 92.0 MB, embeddings of 384 dimensions" in told
    )
    assert "vectors: 100 prompt tokens computed, 300 reused (75%)" in told
    assert not any(word in told for word in ("KV cache", "prefixes", "speculation", "exact mode"))


def test_a_start_under_way_shows_what_it_is_at() -> None:
    loading = WorkerSnapshot("mini:1b", "starting", load_stage="compiling")
    status = replace(STATUS, startup=StartupSnapshot("loading", "compiling"), workers=(loading,))
    assert "state|loading: compiling\n" in shown(status)
    assert "model|mini:1b: starting (compiling)" in shown(status)


def test_a_failed_worker_shows_why() -> None:
    failed = replace(WORKER, state="failed", error="killed by signal 9", rss_bytes=0)
    assert shown(replace(STATUS, workers=(failed,))) == (
        "agentserve|1.2.3, pid 7, up 1 min 15 s\n"
        "address|http://127.0.0.1:1/v1\n"
        "state|without mini:1b; the next request loads it again\n"
        "memory|daemon 60.0 MB\n"
        "requests|1 active, 2 queued, 3 done, 4 cancelled, 5 failed, 6 rejected\n"
        "tokens|70 prompt (0 cached), 0 generated\n"
        "model|mini:1b: failed\n"
        "|last error: killed by signal 9"
    )


def test_a_speed_that_was_not_measured_yet_is_not_shown() -> None:
    for prefill, decode, text in (
        (0.0, 88.84, "\n|decode 88.8 tokens/s\n"),
        (1000.4, 0.0, "\n|prefill 1000 tokens/s\n"),
        (0.0, 0.0, "(75%)\n|speculation"),
    ):
        worker = replace(WORKER, prefill_tokens_per_s=prefill, decode_tokens_per_s=decode)
        assert text in shown(replace(STATUS, workers=(worker,)))


def test_a_failed_self_test_names_what_differs() -> None:
    assert self_test_text(SelfTest(True, False, False, 0.1)) == "failed: replay, rollback differ in 0.10 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273_700, "3 d 4 h")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_without_a_daemon_it_is_code_3_and_says_how_to_start_one(cli: Cli) -> None:
    for arguments in (["status"], ["status", "--json"]):
        done = cli(*arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "Error: agentserve is not running; start it with `agentserve up`\n"


def test_a_running_daemon_is_described_well_within_a_second(cli: Cli) -> None:
    cli("up")
    best = min(timed(cli) for _ in range(3))
    assert best < 0.8, "0.4 s on a free machine; twice that where others work beside it"


def timed(cli: Cli) -> float:
    started = time.monotonic()
    done = cli("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "reference on mock" in done.stdout
    return time.monotonic() - started


def test_limits_are_told_without_those_that_are_none() -> None:
    assert limits_text(Settings().limits) == (
        "64 queued, 120 s of queued prompts, 8 conversations at a time, bodies of 33.6 MB"
    )
    given = Settings(max_prompt_tokens=100, max_output_tokens=50, session_idle_ttl=60, queue_wait=0)
    assert limits_text(given.limits) == (
        "64 queued, 8 conversations at a time, 100 prompt tokens, 50 output tokens, 60 s of an idle session, "
        "bodies of 33.6 MB"
    )
