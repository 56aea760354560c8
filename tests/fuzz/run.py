"""Requests that nobody would write, good and bad: does the daemon answer each as it says that it does?

    python tests/fuzz/run.py [--cases 2000] [--odd 2000] [--seed 1]

Runs the real daemon on the reference model in a home of its own. schemathesis makes up `--cases` requests from
`/openapi.json`, and `--odd` more are the examples of that document with one thing in them that no library would send.

Prints how many cases each operation answered with which status. Ends with 1 when one was answered with an error of the
server, not as the description says, or not at all, and when the daemon or its worker is not as before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
from agentserve.daemon.snapshot import WorkerSnapshot
from agentserve.daemon.store.registry import ModelStore
from chaos import Target, unserved, until_idle
from cli_process import Cli
from encoder_store import put_encoder
from fuzz.odd_requests import fuzz_by_bytes
from fuzz.outcome import Outcome
from fuzz.schema_cases import fuzz_from_schema
from openapi_examples import furnish
from tiny_encoders import NAME, make_tiny_encoder

# Names of models that are made up get an answer too. The cache is so small that its books are looked through in a second.
CONFIG = """
unknown_model = "default"
max_context = 4096
kv_budget = "16MiB"
[aliases]
smollm2 = "reference"
"""
ENCODER_CONFIG = """
model = "tiny-encoder:test"
embedding_model = "tiny-encoder:test"
unknown_model = "default"
"""
# The worker looks at 128 blocks of its books in 0.05 s while it has nothing else to do, and tells nobody.
_BLOCKS_PER_S = 128 / 0.05


def fuzz(home: Path, cases: int, odd: int, seed: int) -> Outcome:
    """Sends the cases, and looks at what is left; a tenth of them goes to a daemon whose model makes embeddings."""
    outcome = Outcome()
    with (
        _serving(Cli(home / "texts"), CONFIG, outcome) as target,
        httpx.Client(base_url=target.url, timeout=30) as client,
    ):
        fuzz_from_schema(target.url, cases - cases // 10, seed, outcome, lambda: furnish(client))
        furnish(client)
        fuzz_by_bytes(target.port, odd, seed, outcome)
        for wrong in unserved(target):
            outcome.fault("afterwards", wrong)
    encoder = Cli(home / "vectors")
    put_encoder(ModelStore(encoder.paths.models), make_tiny_encoder().write(home / "tiny.gguf"), NAME)
    with _serving(encoder, ENCODER_CONFIG, outcome, AGENTSERVE_MOCK="") as target:
        fuzz_from_schema(target.url, cases // 10, seed, outcome, lambda: None, "/v1/embeddings")
    return outcome


@contextmanager
def _serving(cli: Cli, config: str, outcome: Outcome, **environment: str) -> Iterator[Target]:
    """A daemon until the end of the block, which is looked at then."""
    cli.paths.config_file.parent.mkdir(parents=True)
    cli.paths.config_file.write_text(config)
    started = cli("up", **environment)
    assert started.returncode == 0, started.stderr
    try:
        target = Target(cli.client().port)
        worker = _worker(target)
        yield target
        _look(target, cli, worker, outcome)
    finally:
        cli("down", "--now")


def _worker(target: Target) -> WorkerSnapshot:
    (worker,) = target.status().workers
    return worker


def _look(target: Target, cli: Cli, before: WorkerSnapshot, outcome: Outcome) -> None:
    """Notes what is not as it should be after the last answer."""
    time.sleep(2 * _worker(target).blocks_total / _BLOCKS_PER_S)
    status, worker = until_idle(target), _worker(target)
    health = httpx.get(f"{target.url}/health").json().get("status")
    found = (health, status.requests.active, len(status.running), worker.state, worker.pid, worker.error)
    if found != ("healthy", 0, 0, "ready", before.pid, None):
        outcome.fault(
            "afterwards", f"health, active, running, worker are {found}; {before.pid} was the worker"
        )
    log = cli.paths.daemon_log.read_text("utf-8")
    if "Traceback" in log:
        outcome.fault("afterwards", f"the log has a traceback: {log[log.index('Traceback') :][:2000]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--odd", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentserve-fuzz-") as home:
        outcome = fuzz(Path(home), **vars(options))
    sys.stdout.write(f"{outcome.table()}{outcome.cases} cases in {time.monotonic() - began:.0f} s\n")
    for fault in outcome.faults:
        sys.stdout.write(f"WRONG: {fault}\n")
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
