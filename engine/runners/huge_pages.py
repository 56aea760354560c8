"""Weights in pages of 2 MiB instead of 4 KiB.

A decode step reads all weights once. In small pages that takes a quarter of a million address translations per
gigabyte, and prefetching stops at the end of each. Plugins allocate with malloc, which most systems back by small
pages, so the pages are joined afterwards: madvise(2), MADV_COLLAPSE, Linux 6.1 and later.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

HUGE = 2 << 20
# A region with more holes would take more memory afterwards than the translations are worth.
_FILLED = 0.9
_MADV_COLLAPSE = 25  # asm-generic/mman-common.h


class Region(NamedTuple):
    """A stretch of memory, by its first byte and the one behind its last."""

    start: int
    end: int


def join_pages_in_background() -> threading.Thread | None:
    """Starts to join the pages of this process's large regions of anonymous memory; about a second for a gigabyte.

    None where the system has nothing of the kind. A kernel that refuses is not asked again: it costs speed alone.
    """
    if sys.platform != "linux":
        return None
    thread = threading.Thread(target=_join_pages, name="huge-pages", daemon=True)
    thread.start()
    return thread


def _join_pages() -> None:
    with open("/proc/self/smaps") as lines:
        regions = list(worth_joining(lines))
    libc = ctypes.CDLL(None)
    for region in regions:
        place, size = ctypes.c_void_p(region.start), ctypes.c_size_t(region.end - region.start)
        libc.madvise(place, size, mmap.MADV_HUGEPAGE)
        libc.madvise(place, size, _MADV_COLLAPSE)


def worth_joining(smaps: Iterable[str]) -> Iterator[Region]:
    """The parts of well-filled anonymous regions that whole huge pages fit into; `smaps` as proc(5) describes it."""
    region: Region | None = None
    for line in smaps:
        key, *rest = line.split()
        if not key.endswith(":"):
            region = _anonymous(key, *rest)
        elif key == "Rss:" and region is not None:
            whole = Region(-(-region.start // HUGE) * HUGE, region.end // HUGE * HUGE)
            if whole.end > whole.start and int(rest[0]) * 1024 >= _FILLED * (region.end - region.start):
                yield whole


def _anonymous(
    addresses: str, access: str, _offset: str, _device: str, inode: str, *name: str
) -> Region | None:
    """The region that a heading of smaps tells of, if it is ordinary memory that can be written."""
    if not access.startswith("rw") or inode != "0" or name not in ((), ("[heap]",)):
        return None
    start, end = (int(address, 16) for address in addresses.split("-"))
    return Region(start, end)
