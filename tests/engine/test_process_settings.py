"""Settings of the process are put back after a run. Freed memory is kept: blocks do not fault in again page by page."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

from posterity.engine.process_settings import ProcessSettings
from posterity.experiment.run import start_run
from posterity.settings.config import Config

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


@pytest.mark.everything
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_memory_of_a_round_is_there_for_the_next():
    told, first, again = min((run() for _ in range(3)), key=lambda found: found[2])  # some systems reclaim idle pages
    if not told:
        pytest.skip("this C library has no mallopt")
    assert first > 10_000
    assert again < first // 20


@pytest.mark.everything
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_what_the_user_has_told_the_allocator_stays():
    told, _, _ = run(MALLOC_ARENA_MAX="1")
    assert told == 0


def switches():
    return (bool(torch.backends.mkldnn.enabled), torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32, torch.get_num_threads())  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_settings_are_put_back(fails):
    before = switches()
    wanted = ProcessSettings(onednn=not before[0], tf32=not before[1], threads=before[3] + 1, keeps_memory=True)
    with suppress(ZeroDivisionError), wanted.applied():
        assert switches() == (not before[0], not before[1], not before[1], before[3] + 1)
        if fails:
            raise ZeroDivisionError
    assert switches() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_the_process_as_it_was(fails, tmp_path):
    before, during = switches(), []

    def watch(round, rounds, lines):
        during.append(switches())
        if fails:
            raise ZeroDivisionError

    config = Config(method="fedavg", dataset="digits", clients=3, rounds=1, subset="5%", onednn="off", precision="tf32")
    with suppress(ZeroDivisionError):
        start_run(config, tmp_path / "run", watch)
    assert during == [(False, True, True, before[3])]
    assert switches() == before
