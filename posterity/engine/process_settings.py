"""Settings of the whole process that a run needs, for as long as it runs: threads, oneDNN, TF32, freed memory.

PyTorch and the C library have one switch each for the process. A run turns them in one place (`applied`) and turns them
back afterwards, also if it fails, so that the program around it computes as before.

Memory of the host that has been freed is kept for the next round instead of given back to the system: the leaves of a
block of clients are tens of megabytes that are made and dropped once a round. By default the C library returns them at
once, and every page of the next round's costs a fault: a seventh of a round of a small network with convolutions, as
measured on a virtual machine. PyTorch has no allocator of its own on a CPU.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from posterity.core.gaussian import with_tf32

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # names of settings in glibc's malloc.h
USUAL = 2**17  # bytes: what all three are if nobody has set them
APART = 2**25  # bytes of a block that still comes from the heap: the most that glibc takes
KEPT = 2**30  # free bytes at the end of the heap that are kept
AHEAD = 2**26  # bytes that the heap grows by beyond what is needed


@dataclass(frozen=True)
class ProcessSettings:
    """What a run wants of the process."""

    onednn: bool = True  # whether PyTorch may compute by oneDNN on a CPU
    tf32: bool = False  # whether products and convolutions on a GPU may round their factors to TF32
    threads: int | None = None  # None: as many as there are
    keeps_memory: bool = False  # see `keep_memory`

    @contextmanager
    def applied(self) -> Iterator[None]:
        """In force until the block ends, however it ends."""
        with ExitStack() as stack:
            stack.enter_context(with_onednn(self.onednn))
            stack.enter_context(with_tf32(self.tf32))
            if self.threads is not None:
                stack.enter_context(with_threads(self.threads))
            if self.keeps_memory:
                stack.enter_context(_with_kept_memory())
            yield


@contextmanager
def with_onednn(on: bool) -> Iterator[None]:
    """The switch of oneDNN for a while."""
    before = bool(torch.backends.mkldnn.enabled)
    torch.backends.mkldnn.enabled = on  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _with_kept_memory() -> Iterator[None]:
    told = keep_memory()
    try:
        yield
    finally:
        if told:
            _tell(USUAL, USUAL, USUAL)  # what glibc begins with; it has no way to ask


def keep_memory() -> bool:
    """Tell glibc to keep what is freed; False where there is none, or where the user has told it something else."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    return _tell(APART, KEPT, AHEAD)


def _tell(apart: int, kept: int, ahead: int) -> bool:
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:  # another C library
        return False
    return all([tell(MMAP_THRESHOLD, apart), tell(TRIM_THRESHOLD, kept), tell(TOP_PAD, ahead)])
