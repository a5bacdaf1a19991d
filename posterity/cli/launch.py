"""`--engine processes`: the same command once per core, each with one thread, and the clients shared out among them.

A worker is `posterity` again, told by the environment which one it is, as `torchrun` tells it. The first speaks to the
user; what the others complain about is shown if they alone fail. Workers end with the process that started them, also
when that is killed: their standard input closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import torch

from posterity.cli.interrupt import how_to_go_on
from posterity.engine.parent import WORKER, interrupts_held, tell_end
from posterity.engine.processes import LOST, MEETING
from posterity.runs import folder as run_folder
from posterity.settings.config import Config, from_table, read_toml

GRACE = 5.0  # seconds that the others have to end by themselves when one has failed
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the network that nothing outside this machine can reach
TOLD = 2  # exit code of a command that has said in a sentence what is wrong


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launched() -> bool:
    """Whether this process is one of several already."""
    return "WORLD_SIZE" in os.environ


def processes_asked(config: Config) -> int:
    """The processes that a command must start first; 1 = it goes on by itself."""
    if config.engine != "processes" or launched():
        return 1
    if config.device != "cpu":
        raise ValueError("the engine 'processes' shares out the cores of a CPU; for several GPUs use torchrun")
    if config.store == "disk":
        raise ValueError("personal records on disk belong to one process: use --store memory with --engine processes")
    if count_cores() < 2:
        raise ValueError("the engine 'processes' needs two cores or more, and there is one here: use --engine auto")
    return count_cores()


def processes_before(folder: Path) -> int:
    """The processes that an unfinished run goes on in; 1 where it is not one that was shared out by this machine."""
    if not (folder / run_folder.CONFIG).exists() or run_folder.is_finished(folder):
        return 1
    return processes_asked(from_table(read_toml(folder / run_folder.CONFIG)))


def check_runs(folder: Path) -> None:
    """Refuse to go on with several runs at once if one of them needs processes of its own."""
    for path in run_folder.runs_below(folder):
        if path != folder and processes_before(path) > 1:
            raise ValueError(f"{path} was shared out among processes: go on with it first (posterity resume {path})")


def start_workers(size: int) -> int:
    """This command line again in `size` processes; its exit code."""
    torch.set_num_threads(1)  # nothing is computed here any more
    command = [sys.executable, "-m", "posterity", *sys.argv[1:]]
    with ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "meeting"  # readable by this user alone
        common = {**os.environ, "WORLD_SIZE": str(size), MEETING: str(meeting), "GLOO_SOCKET_IFNAME": LOOPBACK,
                  "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", WORKER: "1"}  # fmt: skip
        complaints = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(size)]
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, workers)
        for rank in range(size):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": complaints[rank]} if rank else {}
            with interrupts_held():
                workers.append(subprocess.Popen(command, env=own, stdin=subprocess.PIPE, **silent))
        return _await(workers, complaints)


def _await(workers: list[subprocess.Popen[bytes]], complaints: Sequence[IO[bytes]]) -> int:
    """Wait until all have ended well, or one has not: then the others have some time to say what is wrong."""
    while any(worker.poll() is None for worker in workers) and not any(worker.poll() for worker in workers):
        time.sleep(0.05)
    end = time.monotonic() + GRACE
    while any(worker.poll() is None for worker in workers) and workers[0].poll() != TOLD and time.monotonic() < end:
        time.sleep(0.05)
    codes = [worker.poll() or 0 for worker in workers]
    if codes[0] == TOLD:
        return TOLD
    killed = next((rank for rank, code in enumerate(codes) if code < 0), None)
    if killed is not None:
        print(f"error: process {killed} of the {len(workers)} that shared the clients {tell_end(codes[killed])}, and "
              f"the others were stopped; {how_to_go_on()}", file=sys.stderr)  # fmt: skip
        return 1
    failed = next((rank for rank, code in enumerate(codes) if rank and code not in (0, LOST)), 0)
    if failed:  # what the first has seen of it is at most a broken connection
        complaints[failed].seek(0)
        print(complaints[failed].read().decode(errors="replace"), file=sys.stderr, end="")
    return codes[failed] or max(codes)


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.communicate()  # waits, and closes its input
