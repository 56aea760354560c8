"""How much memory this machine has left, and how the KV cache is sized from it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from .runner import KvGeometry

# Of the memory available after the weights are loaded, the KV cache may take this share by default.
_SHARE = 0.4
# More than this many full contexts is of no use to one person's agents.
_CONTEXTS = 16
_M_MMAP_THRESHOLD = -3  # malloc.h
_DROP_INTERVAL_S = 0.02


class KvBudget(NamedTuple):
    """The size of the pool and the context that fits it; `note` says why the context was cut.

    The pool of a draft model has `draft_blocks`.
    """

    blocks: int
    context_length: int
    note: str | None
    draft_blocks: int = 0


def available_bytes() -> int:
    """Memory that can be taken without swapping."""
    return int(psutil.virtual_memory().available)


def resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    return int(psutil.Process().memory_info().rss)


def plan_kv(
    geometry: KvGeometry,
    context_length: int,
    budget_bytes: int,
    available: int,
    draft: KvGeometry | None = None,
) -> KvBudget:
    """Sizes the pool: `budget_bytes`, or by default a share of `available`, at most 16 contexts.

    The KV of a draft model is paid from the same budget and holds as many tokens, so that it remembers what the model
    does. Raises MemoryError, with both numbers and what sets the limit, when not even two blocks fit.
    """
    # One block more than the context: a dummy row of exact mode may stand behind the last token.
    per_context = geometry.blocks_for(context_length) + 1
    budget = budget_bytes or int(available * _SHARE)
    beside = -(-draft.block_bytes * geometry.block_tokens // draft.block_tokens) if draft else 0
    block_bytes = geometry.block_bytes + beside
    blocks = budget // block_bytes
    if not budget_bytes:
        blocks = min(blocks, per_context * _CONTEXTS)
    if blocks < 2:
        limit = "kv_budget" if budget_bytes else f"{_SHARE:.0%} of the memory that is free"
        whose = f", {2 * beside:,} of them for the draft model," if draft else ""
        raise MemoryError(
            f"the KV cache needs {2 * block_bytes:,} bytes{whose} and may take {budget:,} ({limit})"
        )
    draft_blocks = blocks * geometry.block_tokens // draft.block_tokens if draft else 0
    if blocks >= per_context:
        return KvBudget(blocks, context_length, None, draft_blocks)
    fits = (blocks - 1) * geometry.block_tokens
    note = f"the context is limited to {fits:,} tokens by the KV budget of {budget:,} bytes"
    return KvBudget(blocks, fits, note, draft_blocks)


def zeroed_pages(size: int) -> mmap.mmap:
    """Anonymous memory of `size` bytes that takes no room until it is written, and then page by page.

    NumPy asks for huge pages for large arrays. A KV pool is many arrays, one a layer, that fill from the front: a
    short prompt would touch a page of 2 MiB in each, and a restore would have the kernel zero twice what it writes.
    """
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def give_back_large_buffers() -> None:
    """Makes the C library return every buffer above 256 KiB to the system when it is freed.

    glibc raises that limit to the size of what was freed (mallopt(3), M_MMAP_THRESHOLD), so that the buffers of a
    conversion would stay in the heap for good. Harmless where there is no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 18)


@contextmanager
def mapped_pages_kept_low(file: Path) -> Iterator[None]:
    """Drops the pages of a mapped file again and again while the block runs.

    The plugin reads the mapped weights once to pack them; without this they would all lie in memory twice.
    """
    done = threading.Event()

    def drop() -> None:
        while not done.wait(_DROP_INTERVAL_S):
            drop_mapped_pages(file)

    thread = threading.Thread(target=drop, name="drop-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        drop_mapped_pages(file)


def drop_mapped_pages(file: Path) -> None:
    """Takes the clean pages of a mapped file out of this process; they come back when touched.

    After compiling, the plugin works on its own packed weights and reads the mapped file no more, but for the
    embedding rows that are looked up.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for mapped in Path("/proc/self/maps").read_text().splitlines():
        if mapped.endswith(str(file)):
            start, end = (int(part, 16) for part in mapped.split(" ", 1)[0].split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
