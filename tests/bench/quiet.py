"""Knows whether anybody else computed while something was measured, so that such a measurement can be repeated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# Others' share of all cores above which a measurement is not trusted.
DISTURBED = 0.08
_TRIES = 4
_LOOK_S = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")


def undisturbed(measure: Callable[[], T], pids: Sequence[int], patience_s: float) -> tuple[T, float]:
    """What `measure` returns, and others' share of all cores meanwhile; `pids` and this process are not others.

    Waits up to `patience_s` seconds for a quiet machine before each of a few tries, and gives the quietest of
    them when none was quiet.
    """
    best: tuple[T, float] | None = None
    for _ in range(_TRIES):
        _wait_until_quiet(patience_s)
        before = _Clock.now(pids)
        result = measure()
        others = before.others_until(_Clock.now(pids))
        if best is None or others < best[1]:
            best = result, others
        if others <= DISTURBED:
            break
    assert best is not None
    return best


class _Clock(NamedTuple):
    """Seconds of wall time, of CPU time of everything, and of CPU time of those that are measured."""

    wall: float
    everything: float
    measured: float

    @classmethod
    def now(cls, pids: Sequence[int]) -> _Clock:
        own = sum(_cpu_seconds(pid) for pid in (os.getpid(), *pids))
        return cls(time.monotonic(), _busy_seconds(), own)

    def others_until(self, later: _Clock) -> float:
        others = (later.everything - self.everything) - (later.measured - self.measured)
        return max(0.0, others / (later.wall - self.wall) / (os.cpu_count() or 1))


def _wait_until_quiet(patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        before = _Clock.now(())
        time.sleep(_LOOK_S)
        if before.others_until(_Clock.now(())) <= DISTURBED:
            return


def _busy_seconds() -> float:
    """CPU time of the whole machine, with what its host took away; without idle and waiting (proc(5))."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process: utime and stime (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
