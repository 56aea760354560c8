"""Memory of loading: the worker's peak and what it keeps, cold and with a warm graph cache.

    python tests/bench/memory.py [MODEL.gguf …] [--synthetic]

A worker process loads each file twice, first without and then with a cached graph, then computes a prompt. Its
memory is read from /proc: the peak of everything resident (VmHWM), and after that of anonymous and of file-backed
pages, the latter being clean copies of the cached graph that the kernel may drop at any time. What a process needs
that has loaded the same libraries and no model is measured too and subtracted. `--synthetic` adds files of the
size of Llama-3.2-1B in Q4_0 and Q4_1; they take 1.5 GB in the folder for temporary files until the end.

Targets: the peak at most 2.2 times the weights in memory, settled at most 1.3 times and the KV in use.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from figures import Target, finish
from synthetic import TYPES, write_llama_1b

sys.path.append(str(Path(__file__).parents[1]))
from agentserve.engine.protocol import Accepted, Finished, Generate, GenerateRequest, LoadModel, Ready
from worker_rig import WorkerProcess, worker_process

PEAK_FACTOR, SETTLED_FACTOR = 2.2, 1.3
PROMPT_TOKENS = 512
MB = 1e6
# What a worker has in memory before it opens a model: the libraries, and the CPU plugin.
BASE = """
import agentserve.engine.runners.loading, agentserve.engine.worker, openvino, sys
openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Resident:
    """Memory of one process in bytes, as the kernel counts it."""

    peak: int
    anonymous: int
    file_backed: int

    @property
    def total(self) -> int:
        return self.anonymous + self.file_backed


@dataclass(frozen=True)
class Load:
    """One load of one model. `settled` is after loading, `used` after a prompt, which `kv_bytes` were written for."""

    model: str
    cache: str
    weight_bytes: int
    load_s: float
    loaded: Resident
    used: Resident
    kv_bytes: int
    base: Resident

    @property
    def peak_factor(self) -> float:
        return (self.loaded.peak - self.base.total) / self.weight_bytes

    @property
    def settled_factor(self) -> float:
        return (self.loaded.total - self.base.total) / self.weight_bytes

    @property
    def used_factor(self) -> float:
        return (self.used.total - self.base.total - self.kv_bytes) / self.weight_bytes


def resident(pid: int) -> Resident:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return Resident(*(kilobytes[name] * 1024 for name in ("VmHWM", "RssAnon", "RssFile")))


def base_process() -> Resident:
    """What the libraries take without a model."""
    command = [sys.executable, "-P", "-c", BASE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return resident(process.pid)


def loaded(file: Path, cache: Path, state: str, threads: int, base: Resident) -> Load:
    """Loads a file in a worker, computes a prompt, and reads its memory after both."""
    with worker_process() as worker:
        ready = worker.load(LoadModel("bench", str(file), threads=threads, compile_cache_dir=str(cache)))
        assert isinstance(ready, Ready), ready
        assert ready.compile_cache_hit == (state == "warm"), ready
        after_loading = resident(worker.process.pid)
        tokens = _prompt(worker)
        return Load(
            model=file.stem,
            cache=state,
            weight_bytes=ready.model.weight_bytes,
            load_s=ready.load_s,
            loaded=after_loading,
            used=resident(worker.process.pid),
            kv_bytes=tokens * ready.model.kv_bytes_per_token,
            base=base,
        )


def _prompt(worker: WorkerProcess) -> int:
    """Has the worker compute a prompt and a few tokens; returns how many tokens have KV."""
    tokens = tuple(range(300, 300 + PROMPT_TOKENS))
    worker.send(Generate(GenerateRequest("memory", prompt=tokens, max_new_tokens=8)))
    accepted, *_, finished = worker.receive_until(Finished)
    assert isinstance(accepted, Accepted), accepted
    assert isinstance(finished, Finished)
    return finished.prompt_tokens + finished.completion_tokens


@contextmanager
def synthetic_files(wanted: bool) -> Iterator[list[Path]]:
    """Files of Llama-3.2-1B's size, deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as folder:
        files = [Path(folder) / f"synthetic-1b-{name}.gguf" for name in TYPES] if wanted else []
        for file, kind in zip(files, TYPES.values(), strict=False):
            write_llama_1b(file, kind)
        yield files


def measured(files: Sequence[Path], threads: int) -> Iterator[Load]:
    base = base_process()
    for file in files:
        with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as cache:
            for state in ("cold", "warm"):
                yield loaded(file, Path(cache), state, threads, base)


def rows(loads: Sequence[Load]) -> Iterator[tuple[str, ...]]:
    yield (
        "MB", "cache", "weights", "peak", "/weights", "anon", "file", "/weights", "after a prompt", "/weights", "load s"
    )  # fmt: skip
    for one in loads:
        yield (
            one.model,
            one.cache,
            f"{one.weight_bytes / MB:.0f}",
            f"{one.loaded.peak / MB:.0f}",
            f"{one.peak_factor:.2f}",
            f"{one.loaded.anonymous / MB:.0f}",
            f"{one.loaded.file_backed / MB:.0f}",
            f"{one.settled_factor:.2f}",
            f"{one.used.total / MB:.0f}",
            f"{one.used_factor:.2f}",
            f"{one.load_s:.1f}",
        )


def targets(loads: Sequence[Load]) -> Iterator[Target]:
    for one in loads:
        yield Target(f"{one.model} {one.cache}: peak", one.peak_factor, PEAK_FACTOR, at_least=False)
        yield Target(f"{one.model} {one.cache}: settled", one.settled_factor, SETTLED_FACTOR, at_least=False)
        yield Target(f"{one.model} {one.cache}: in use", one.used_factor, SETTLED_FACTOR, at_least=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", type=Path, help="GGUF files")
    parser.add_argument("--synthetic", action="store_true", help="measure files of a 1B model's size too")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    with synthetic_files(options.synthetic) as made:
        loads = list(measured([*options.models, *made], options.threads))
    base = loads[0].base if loads else base_process()
    facts = {"base": asdict(base), "loads": [asdict(one) for one in loads]}
    about = [("base of a process without a model", f"{base.total / MB:.0f} MB, subtracted from the factors")]
    return finish(
        facts, [about, list(rows(loads))], list(targets(loads)), as_json=options.json, check=options.check
    )


if __name__ == "__main__":
    sys.exit(main())
