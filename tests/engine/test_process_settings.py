"""Freed memory is kept: a round's blocks do not fault in again page by page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, torch
from posterity.engine.process_settings import keep_memory

def faults():
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (3, 5, 7, 4, 6):  # stacks of several leaves, made and dropped round after round
        blocks = [torch.empty(size * 2**20).fill_(1) for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, which some builds of PyTorch ask for: a fault is 4 KiB then
told = keep_memory()
first, again = faults(), min(faults() for _ in range(6))  # at first the heap still grows, by chance of its layout
print(int(told), first, again)
"""


def run(**given: str) -> tuple[int, int, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**clean, **given}, capture_output=True, text=True, check=True
    )
    told, first, again = (int(word) for word in done.stdout.split())
    return told, first, again


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_memory_of_a_round_is_there_for_the_next():
    told, first, again = min((run() for _ in range(3)), key=lambda found: found[2])  # some systems reclaim idle pages
    if not told:
        pytest.skip("this C library has no mallopt")
    assert first > 10_000
    assert again < first // 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_what_the_user_has_told_the_allocator_stays():
    told, _, _ = run(MALLOC_ARENA_MAX="1")
    assert told == 0
