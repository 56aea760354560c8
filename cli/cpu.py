"""What this machine computes with, for reports of speed."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

# Instruction sets that change the speed of inference, as the kernel names them.
_TELLING = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` are those that this process may use."""

    name: str
    cores: int
    instruction_sets: tuple[str, ...]


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """The first processor as the kernel describes it."""
    lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
    facts: dict[str, str] = {}
    for key, _, value in lines:
        facts.setdefault(key.strip(), value.strip())
    flags = (facts.get("flags") or facts.get("Features", "")).split()
    return Cpu(
        name=facts.get("model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        instruction_sets=tuple(one for one in _TELLING if one in flags),
    )
