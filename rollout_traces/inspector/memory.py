"""Memory that an answer is done with goes back to the system: allocators keep it for the next one, which may be never."""

from __future__ import annotations

import ctypes
import gc
import sys

MMAP_BYTES = 1 << 20
"""A block of so many bytes, as a column is, is a mapping of its own, which ends with it."""
M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's `malloc.h`; setting it also ends its growth with the blocks that are freed."""
M_ARENA_MAX = -8
ARENAS = 2
"""Heaps that all threads share: each of its own would keep what its largest answer took."""


def give_back_large_blocks() -> None:
    """Has this process take large blocks from the system one by one, Arrow's too, where the C library can."""
    import pyarrow as pa

    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none, and gives large blocks back by itself
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(M_ARENA_MAX, ARENAS)
    pa.set_memory_pool(pa.system_memory_pool())
    gc.collect()
    give_back()


def give_back() -> None:
    """Gives back the small blocks that lie together unused."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
