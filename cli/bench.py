"""bench: how fast a model of the store is on this machine, in the engine and through HTTP."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import typer

from .. import __version__
from ..daemon.config import Settings, load_settings
from ..daemon.paths import Paths, resolve_paths
from ..daemon.store.registry import ModelStore, StoredModel
from . import output
from .bench_engine import Answer, BenchEngine, bench_engine
from .bench_http import Served, Stream, served, stream
from .bench_report import BenchReport, Rate, Streaming, show
from .cpu import this_cpu
from .options import Flags
from .progress import Report, progress

# Tokens of a streamed answer: long enough that its rate is not the noise of a few steps.
STREAMED = 128
# Room for the chat template and the question, so that a chat prompt is about as long as was asked.
TEMPLATE_ROOM = 64
QUESTION = "Explain in detail, step by step, what this code does and why."
# Settings that change what the engine does; the temporary daemon gets the same.
ENGINE_SETTINGS = ("device", "threads", "max_context", "kv_budget", "exact", "minima", "mock")


@dataclass(frozen=True, slots=True)
class _Plan:
    prompts: tuple[int, ...]
    new: int
    repeats: int


def bench(
    model: Annotated[str | None, typer.Option("--model", help="Instead of the default model.")] = None,
    prompt: Annotated[str, typer.Option("--prompt", help="Prompt lengths in tokens.")] = "512,4096",
    decode: Annotated[int, typer.Option("--decode", min=2, help="Tokens after each prompt.")] = 32,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Measurements of each figure.")] = 5,
    threads: Annotated[int | None, typer.Option("--threads", min=0, help="Inference threads.")] = None,
    http: Annotated[bool, typer.Option("--http/--no-http", help="Measure streaming too.")] = True,
    json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
) -> None:
    """Measure prefill, decode and streaming speed of a model on this machine.

    Loads the model in a process of its own. Streaming is measured on the running daemon if it has the model
    loaded, else on a temporary one.
    """
    paths = resolve_paths()
    settings = load_settings({"model": model, "threads": threads}, config_file=paths.config_file)
    plan = _Plan(_lengths(prompt), decode, repeats)
    with progress() as report:
        found = _measure(settings, paths, plan, report, http=http)
    if json:
        output.json(found)
    else:
        show(found)


def _lengths(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of lengths such as 512,4096", param_hint="--prompt")
    return tuple(sorted({int(part) for part in parts}))


def _measure(settings: Settings, paths: Paths, plan: _Plan, report: Report, *, http: bool) -> BenchReport:
    stored = None if settings.mock else _stored(settings, paths)
    name = stored.name if stored else "reference"
    report(f"loading {name}", 0, 0)
    with bench_engine(_load_spec(stored, settings, paths)) as engine:
        fitting = tuple(n for n in plan.prompts if n + plan.new <= engine.facts["context_length"])
        prefill, decode = _engine_rates(engine, fitting, plan, report)
        streaming = None
        if http and fitting:
            with served(name, paths, _engine_flags(settings), report) as daemon:
                streaming = _streaming(engine, daemon, fitting[0], plan.repeats, report)
        return BenchReport(
            version=__version__,
            python=platform.python_version(),
            cpu=this_cpu(),
            model=engine.facts,
            settings=_engine_flags(settings),
            repeats=plan.repeats,
            prefill=prefill,
            decode=decode,
            streaming=streaming,
            notes=tuple(_notes(plan, fitting, streaming, http=http)),
        )


def _stored(settings: Settings, paths: Paths) -> StoredModel:
    return ModelStore(paths.models).resolve(settings.aliases.get(settings.model, settings.model))


def _load_spec(stored: StoredModel | None, settings: Settings, paths: Paths) -> Answer:
    return {
        "name": stored.name if stored else "reference",
        "model_path": str(stored.path) if stored else None,
        "model_digest": stored.digest.removeprefix("sha256:") if stored else "",
        "device": settings.device,
        "threads": settings.threads,
        "max_context": settings.max_context,
        "kv_budget_bytes": settings.kv_budget,
        "exact": settings.exact,
        "minima": settings.minima,
        "compile_cache_dir": str(paths.compile_cache),
    }


def _engine_flags(settings: Settings) -> Flags:
    return {name: getattr(settings, name) for name in ENGINE_SETTINGS}


def _engine_rates(
    engine: BenchEngine, lengths: Sequence[int], plan: _Plan, report: Report
) -> tuple[tuple[Rate, ...], tuple[Rate, ...]]:
    """Prefill and decode rates. Lengths take turns, so that a slow minute of the machine meets them all."""
    runs: dict[int, list[Answer]] = {length: [] for length in lengths}
    for index in range(plan.repeats + 1):
        report(f"measuring the engine: {index} of {plan.repeats}" if index else "warming up", 0, 0)
        for length in lengths:
            answer = engine.complete(engine.passage(length, index)["tokens"], plan.new)
            if index:
                runs[length].append(answer)
    prefill = [_rate(n, [n / one["prefill_s"] for one in runs[n]]) for n in lengths]
    decode = [_rate(n, [(plan.new - 1) / one["decode_s"] for one in runs[n]]) for n in lengths]
    return tuple(prefill), tuple(decode)


def _rate(prompt_tokens: int, values: Sequence[float]) -> Rate:
    return Rate(prompt_tokens, median(values), max(values))


def _streaming(
    engine: BenchEngine, daemon: Served, length: int, repeats: int, report: Report
) -> Streaming | None:
    """HTTP and engine in turn, on the same prompts; None when the model's answers are too short to measure."""
    pairs: list[tuple[Stream, Answer]] = []
    passage_tokens = max(1, length - TEMPLATE_ROOM)
    for index in range(repeats + 1):
        report(f"measuring HTTP: {index} of {repeats}" if index else "warming up HTTP", 0, 0)
        # New with each run of `bench`: a daemon would remember the prompts of the last one.
        text = f"[{secrets.token_hex(4)}]\n{engine.passage(passage_tokens, index)['text']}\n\n{QUESTION}"
        streamed = stream(daemon.client, engine.facts["name"], text, STREAMED)
        if index and streamed.completion_tokens > 1:
            pairs.append((streamed, engine.chat(text, streamed.completion_tokens)))
    return _compared(pairs, daemon) if pairs else None


def _compared(pairs: Sequence[tuple[Stream, Answer]], daemon: Served) -> Streaming:
    rates = [
        ((http.completion_tokens - 1) / http.decode_s, (http.completion_tokens - 1) / own["decode_s"])
        for http, own in pairs
    ]
    return Streaming(
        daemon="temporary" if daemon.is_temporary else "running",
        prompt_tokens=round(median(own["prompt_tokens"] for _, own in pairs)),
        completion_tokens=round(median(http.completion_tokens for http, _ in pairs)),
        http_tokens_per_s=median(http for http, _ in rates),
        engine_tokens_per_s=median(own for _, own in rates),
        ratio=median(http / own for http, own in rates),
        http_first_token_s=median(http.first_text_s for http, _ in pairs),
        engine_first_token_s=median(own["first_token_s"] for _, own in pairs),
    )


def _notes(plan: _Plan, fitting: Sequence[int], streaming: Streaming | None, *, http: bool) -> Iterator[str]:
    for length in plan.prompts:
        if length not in fitting:
            yield f"{length} tokens and the answer do not fit the context of this model"
    if http and fitting and streaming is None:
        yield "the model's answers were too short to measure streaming"
