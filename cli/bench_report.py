"""What `bench` found out, as data and as it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..daemon.store.registry import size_text
from . import output
from .cpu import Cpu


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second at one prompt length, over all repeats."""

    prompt_tokens: int
    median: float
    best: float


@dataclass(frozen=True, slots=True)
class Streaming:
    """An answer streamed over HTTP against the same answer in the engine's own loop; medians of the repeats.

    `ratio` is the median of the ratios of neighbours in time, HTTP to engine.
    """

    daemon: str
    prompt_tokens: int
    completion_tokens: int
    http_tokens_per_s: float
    engine_tokens_per_s: float
    ratio: float
    http_first_token_s: float
    engine_first_token_s: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything that `bench` found out, and what it found it out on."""

    version: str
    python: str
    cpu: Cpu
    model: dict[str, Any]
    settings: dict[str, Any]
    repeats: int
    prefill: tuple[Rate, ...]
    decode: tuple[Rate, ...]
    streaming: Streaming | None
    notes: tuple[str, ...]


def show(found: BenchReport) -> None:
    """Prints a report for people."""
    output.facts(_facts(found))
    output.line()
    output.table(("", "PROMPT", "MEDIAN", "BEST"), _rows(found))
    if found.streaming is not None:
        output.line()
        output.facts(_streaming_facts(found.streaming))
    for note in found.notes:
        output.line(f"note: {note}")


def _facts(found: BenchReport) -> Iterator[tuple[str, str]]:
    model = found.model
    yield "agentserve", ", ".join(filter(None, (found.version, model["runtime"], f"Python {found.python}")))
    yield "cpu", f"{found.cpu.name}, {found.cpu.cores} cores, {' '.join(found.cpu.instruction_sets)}"
    yield "model", f"{model['name']}: {model['architecture']}, weights {size_text(model['weight_bytes'])}"
    threads = found.settings["threads"] or "as many as the engine chooses"
    yield "settings", f"threads {threads}, exact {'on' if model['exact'] else 'off'}, {found.repeats} repeats"


def _rows(found: BenchReport) -> Iterator[tuple[str, ...]]:
    for phase, rates in (("prefill", found.prefill), ("decode", found.decode)):
        for rate in rates:
            yield phase, str(rate.prompt_tokens), f"{rate.median:.1f} tok/s", f"{rate.best:.1f} tok/s"


def _streaming_facts(found: Streaming) -> Iterator[tuple[str, str]]:
    http, engine = found.http_tokens_per_s, found.engine_tokens_per_s
    yield "streaming", f"{http:.1f} tok/s through HTTP, {engine:.1f} in the engine: ratio {found.ratio:.3f}"
    first_http, first_engine = found.http_first_token_s, found.engine_first_token_s
    yield "first token", f"{first_http:.3f} s through HTTP, {first_engine:.3f} s in the engine"
    yield "", f"{found.prompt_tokens} tokens in, {found.completion_tokens} out, {found.daemon} daemon"
