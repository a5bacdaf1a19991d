"""Memory of the host that has been freed is kept for the next round instead of given back to the system.

The leaves of a block of clients are tens of megabytes that are made and dropped once a round. By default the C library
returns them at once, and every page of the next round's costs a fault: a seventh of a round of a small network with
convolutions, as measured on a virtual machine. PyTorch has no allocator of its own on a CPU.
"""

from __future__ import annotations

import ctypes
import os
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # names of settings in glibc's malloc.h
APART = 2**25  # bytes of a block that still comes from the heap: the most that glibc takes
KEPT = 2**30  # free bytes at the end of the heap that are kept
AHEAD = 2**26  # bytes that the heap grows by beyond what is needed


def keep_memory() -> bool:
    """Tell glibc so, for the whole process; False where there is none, or where the user has told it something else."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:  # another C library
        return False
    return all([tell(MMAP_THRESHOLD, APART), tell(TRIM_THRESHOLD, KEPT), tell(TOP_PAD, AHEAD)])


__all__ = ["keep_memory"]
