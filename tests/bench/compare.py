"""Prefill and decode against other engines on the same file, threads and token ids, in one run.

    python tests/bench/compare.py MODEL.gguf [--llama-server PATH] [--also NAME=COMMAND] [--rounds 12]

A shared machine is faster in one minute than in the next, so engines take turns: in each round every engine
measures each prompt length once, on the same text, one at a time, in an order that rotates. Medians and minima
of the rounds are compared; ratios above 1 mean that agentserve is faster. The text is source code, and another
stretch of it in every round. A measurement during which others used the processor is repeated a few times.

openvino-genai takes part when it is installed, llama-server when its path is given. `--variant` adds agentserve with
other fields of its load message, such as 'rounded={"minima": "rounded"}'. `--also` adds any command that speaks the
lines of `agentserve.engine.bench`, such as that of another checkout. Both OpenVINO engines compute in
bfloat16 where the CPU can; `--genai-f32` adds openvino-genai in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from contenders import Contender, ContenderError, LinesContender, LlamaServer, Sample
from figures import Target, finish
from quiet import DISTURBED, undisturbed

OURS = "agentserve"
GENAI = "openvino-genai"
GENAI_F32 = "openvino-genai, f32"
LLAMA = "llama.cpp"
ENGINE = (sys.executable, "-P", "-m", "agentserve.engine.bench")

Samples = Mapping[tuple[str, int], list[Sample]]
Row = tuple[str, ...]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--llama-server", type=Path, help="the program of llama.cpp")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=JSON")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--without-genai", action="store_true")
    parser.add_argument("--genai-f32", action="store_true", help="openvino-genai in float32 too")
    parser.add_argument("--prompts", default="512,4096", help="prompt lengths in tokens")
    parser.add_argument("--decode", type=int, default=32, help="tokens generated after each prompt")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)


def opened(options: argparse.Namespace, folder: Path, held: ExitStack) -> dict[str, Contender]:
    """All contenders, loaded, ours first; `held` closes them. Raises ContenderError."""
    context = max(prompt_lengths(options)) + options.decode + 64
    spec = {
        "name": "bench",
        "model_path": str(options.model.absolute()),
        "threads": options.threads,
        "compile_cache_dir": str(folder / "compiled"),
    }
    found: dict[str, Contender] = {OURS: LinesContender(ENGINE, spec, folder / "ours.log")}
    for name, fields in (item.split("=", 1) for item in options.variant):
        found[name] = LinesContender(ENGINE, spec | json.loads(fields), folder / f"{name}.log")
    for number, (name, command) in enumerate(item.split("=", 1) for item in options.also):
        own = {**spec, "compile_cache_dir": str(folder / f"compiled-{number}")}
        found[name] = LinesContender(shlex.split(command), own, folder / f"also-{number}.log")
    if not options.without_genai and _has_genai():
        found |= _genai(options, folder)
    if options.llama_server is not None:
        found[LLAMA] = LlamaServer(
            options.llama_server, options.model, options.threads, context, folder / "llama.log"
        )
    for contender in found.values():
        held.callback(contender.close)
    return found


def _genai(options: argparse.Namespace, folder: Path) -> dict[str, Contender]:
    """With its own settings, and in float32 where that is asked for."""
    command = (sys.executable, str(Path(__file__).with_name("genai_contender.py")))
    spec: dict[str, Any] = {"model_path": str(_linked(options.model, folder)), "threads": options.threads}
    found: dict[str, Contender] = {GENAI: LinesContender(command, spec, folder / "genai.log")}
    if options.genai_f32:
        spec["properties"] = {"INFERENCE_PRECISION_HINT": "f32"}
        found[GENAI_F32] = LinesContender(command, spec, folder / "genai-f32.log")
    return found


def _has_genai() -> bool:
    if importlib.util.find_spec("openvino_genai"):
        return True
    sys.stderr.write("openvino-genai is not installed and takes no part\n")
    return False


def _linked(model: Path, folder: Path) -> Path:
    """The file in a folder of its own, where genai writes what it converts."""
    target = folder / "genai" / "model.gguf"
    target.parent.mkdir()
    try:
        os.link(model.resolve(), target)
    except OSError:
        shutil.copyfile(model, target)
    return target


def prompt_lengths(options: argparse.Namespace) -> list[int]:
    return [int(length) for length in options.prompts.split(",")]


def measured(contenders: Mapping[str, Contender], options: argparse.Namespace) -> Samples:
    """All samples by engine and prompt length; a round before the first warms up and is not counted."""
    ours = contenders[OURS]
    assert isinstance(ours, LinesContender)
    samples: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    names = list(contenders)
    for round_number in range(-1, options.rounds):
        if sys.stderr.isatty():
            sys.stderr.write(f"\rround {round_number + 1} of {options.rounds} ")
        for length in prompt_lengths(options):
            passage = ours.ask({"do": "passage", "tokens": length, "index": round_number + 1})["tokens"]
            shift = round_number % len(names)
            for name in names[shift:] + names[:shift]:
                sample = _sample(contenders[name], passage, options)
                if round_number >= 0:
                    samples[name, length].append(sample)
    return samples


def _sample(contender: Contender, passage: Sequence[int], options: argparse.Namespace) -> Sample:
    """A measurement that nobody disturbed, where one can be had."""
    sample, others = undisturbed(
        lambda: contender.measure(passage, options.decode), [contender.pid], options.patience
    )
    return replace(sample, others=others)


def figures(samples: Samples, lengths: Sequence[int]) -> Iterator[tuple[str, int, dict[str, list[float]]]]:
    """Each figure: `prefill` or `decode`, the prompt length, and tokens per second by engine."""
    names = list(dict.fromkeys(name for name, _ in samples))
    for length in lengths:
        yield "prefill", length, {n: [length / s.prefill_s for s in samples[n, length]] for n in names}
    for length in lengths:
        yield "decode", length, {n: [1 / s.token_s for s in samples[n, length]] for n in names}


def speed_rows(samples: Samples, lengths: Sequence[int]) -> Iterator[Row]:
    yield "figure", "engine", "median tok/s", "best", "ratio of medians", "ratio of best", "quiet runs"
    for figure, length, rates in figures(samples, lengths):
        for name, values in rates.items():
            median, best = statistics.median(values), max(values)
            ratios = (
                f"{statistics.median(rates[OURS]) / median:.3f}",
                f"{max(rates[OURS]) / best:.3f}",
            )
            quiet = sum(sample.others <= DISTURBED for sample in samples[name, length])
            runs = f"{quiet} of {len(values)}"
            yield f"{figure} {length}", name, f"{median:.1f}", f"{best:.1f}", *ratios, runs


def targets(samples: Samples, lengths: Sequence[int]) -> Iterator[Target]:
    """The ratios of medians that the project promises."""
    for figure, length, rates in figures(samples, lengths):
        ratio = {n: statistics.median(rates[OURS]) / statistics.median(v) for n, v in rates.items()}
        if GENAI in ratio:
            yield Target(f"{figure} {length} to {GENAI}", ratio[GENAI], 0.95, at_least=True)
        if LLAMA in ratio and figure == "prefill":
            yield Target(f"{figure} {length} to {LLAMA}", ratio[LLAMA], 4.0, at_least=True)
        if LLAMA in ratio and figure == "decode" and length >= 4096:
            yield Target(f"{figure} {length} to {LLAMA}", ratio[LLAMA], 3.0, at_least=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    lengths = prompt_lengths(options)
    with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as name, ExitStack() as held:
        contenders = opened(options, Path(name), held)
        versions = {name: contender.version for name, contender in contenders.items()}
        samples = measured(contenders, options)
    raw = {f"{figure} {length}": rates for figure, length, rates in figures(samples, lengths)}
    others = {f"{name} {length}": [one.others for one in runs] for (name, length), runs in samples.items()}
    facts = {
        "threads": options.threads,
        "rounds": options.rounds,
        "versions": versions,
        "tokens_per_s": raw,
        "others": others,
    }
    tables: list[list[Row]] = [[("engine", "version"), *versions.items()], list(speed_rows(samples, lengths))]
    return finish(facts, tables, list(targets(samples, lengths)), as_json=options.json, check=options.check)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ContenderError as error:
        sys.exit(f"compare: {error}")
