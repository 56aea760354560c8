"""While nothing is to be done, the blocks of the next prompt get their memory, and no block that holds something."""

from __future__ import annotations

from itertools import count, takewhile

from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import LoadModel
from agentserve.engine.runners.backend import Backend
from agentserve.engine.runners.reference_model import open_reference
from engine_rig import Rig, chat


class WritingRunner:
    """Passes everything on to a runner and keeps the numbers of the blocks that were written as a whole."""

    def __init__(self, backend: Backend) -> None:
        self._runner = backend.runner
        self.written: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def write_block(self, block: int, data: bytes) -> None:
        self.written.append(block)
        self._runner.write_block(block, data)


def idle(rig: Rig) -> int:
    """Steps until there is nothing to do; how many had something."""
    return sum(1 for _ in takewhile(lambda _: rig.engine.step(), count()))


def rig(blocks: int = 64) -> tuple[Rig, WritingRunner]:
    backend = open_reference(LoadModel("reference", None))
    rig = Rig(EngineConfig(context_length=1024, max_chunk=256), blocks=blocks, backend=backend)
    runner = WritingRunner(backend)
    rig.runner.__dict__["_runner"] = runner
    return rig, runner


def test_an_idle_engine_writes_the_blocks_of_a_chunk_once() -> None:
    r, runner = rig()
    size = runner.geometry.block_tokens  # type: ignore[attr-defined]
    idle(r)
    assert len(runner.written) == 256 // size
    idle(r)
    assert len(runner.written) == 256 // size


def test_the_next_prompt_takes_blocks_that_were_written() -> None:
    r, runner = rig()
    idle(r)
    sequence = r.submit(text="a question", max_new_tokens=4)
    r.engine.step()
    assert sequence.session is not None
    assert set(sequence.session.block_table) <= set(runner.written)


def test_nothing_that_is_known_is_written_over() -> None:
    """A second turn reads what the first one left, in a pool with hardly a free block."""
    warm, runner = rig(blocks=24)
    warm.ask("first", chat("a question"))
    idle(warm)
    reused = warm.ask("second", chat("a question", "an answer", "and another"))
    assert runner.written
    assert reused.cached_tokens > 0
    cold, _ = rig(blocks=24)
    cold.ask("second", chat("a question", "an answer", "and another"))
    assert warm.text("second") == cold.text("second")
