from __future__ import annotations

import sys

import numpy as np
import pytest
from agentserve.engine.runners.huge_pages import HUGE, Region, join_pages_in_background, worth_joining

MB = 1 << 20


def smaps(start: int, size: int, resident: int, access: str = "rw-p", rest: str = "00:00 0") -> list[str]:
    return [
        f"{start:x}-{start + size:x} {access} 00000000 {rest}",
        f"Size:           {size // 1024:>8} kB",
        f"Rss:            {resident // 1024:>8} kB",
        "VmFlags: rd wr mr mw me ac sd",
    ]


def test_regions_are_cut_to_whole_huge_pages() -> None:
    assert list(worth_joining(smaps(7 * MB, 10 * MB, 10 * MB))) == [Region(8 * MB, 16 * MB)]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(smaps(8 * MB, 8 * MB, 7 * MB), id="holes would be filled"),
        pytest.param(smaps(8 * MB, 8 * MB, 8 * MB, "r--p"), id="not writable"),
        pytest.param(smaps(8 * MB, 8 * MB, 8 * MB, "rw-p", "fe:00 17   /a file"), id="a file"),
        pytest.param(smaps(8 * MB, 8 * MB, 8 * MB, "rw-p", "00:00 0   [stack]"), id="a stack"),
        pytest.param(smaps(9 * MB, 2 * MB, 2 * MB), id="no whole page"),
    ],
)
def test_other_memory_is_left_alone(lines: list[str]) -> None:
    assert not list(worth_joining(lines))


def test_the_heap_counts_and_a_region_does_not_inherit_from_the_one_before() -> None:
    heap = smaps(8 * MB, 4 * MB, 4 * MB, rest="00:00 0    [heap]")
    file = smaps(16 * MB, 4 * MB, 4 * MB, rest="fe:00 17   /a file")
    assert list(worth_joining([*heap, *file])) == [Region(8 * MB, 12 * MB)]


@pytest.mark.skipif(sys.platform != "linux", reason="joins pages on Linux only")
def test_memory_keeps_its_content_while_its_pages_are_joined() -> None:
    values = np.arange(8 * HUGE // 8)
    thread = join_pages_in_background()
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
    assert (values == np.arange(values.size)).all()
