"""What a comparison has to do, piece by piece, and processes that do it: several runs at once.

A worker is Python again. Tasks go to its standard input as lines of JSON and news come back from its standard output;
what a method prints goes to standard error. Nothing is pickled and nothing listens. Workers end with this process. One
that died is named, with its run, and the others go on. A run that fails ends the comparison, as it would without
workers.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posterity.core.network import Network
from posterity.data.federation import Federation
from posterity.experiment.divergence import NoResult
from posterity.experiment.result import Result
from posterity.experiment.run import Watch, resume_run, run_seeds, start_run
from posterity.runs.folder import CONFIG
from posterity.runs.lines import Line, from_json, to_json
from posterity.settings.config import Config, from_table, to_toml
from posterity.settings.plugins import describe_error

SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from posterity.experiment.workers import serve; serve()"
)
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
Run = tuple[Path, Config]
Worker = subprocess.Popen[str]
Arrived = Callable[[list[Line]], None]  # a round's lines
Tell = Callable[[str], None]  # a sentence for the user


@dataclass(frozen=True)
class Task:
    """One run of a comparison, or several seeds of it at once."""

    title: str
    runs: tuple[Run, ...]

    @staticmethod
    def of(runs: Sequence[Run], name: str = "") -> Task:
        """The task of some runs; `name` is the method's in this comparison."""
        seeds = ", ".join(str(config.seed) for _, config in runs)
        return Task(f"{name or runs[0][1].method} seed{'s' * (len(runs) > 1)} {seeds}", tuple(runs))

    @property
    def path(self) -> Path:
        """Of the first run."""
        return self.runs[0][0]

    @property
    def config(self) -> Config:
        """Of the first run."""
        return self.runs[0][1]

    def do(self, watch: Watch, federation: Federation | None = None, model: Network | None = None) -> list[Result]:
        """Start it, or go on with it; perhaps with a federation or a network of the caller's own."""
        if len(self.runs) > 1:
            paths, configs = zip(*self.runs, strict=True)
            return run_seeds(configs, paths, watch, federation, model)
        ((path, config),) = self.runs
        if (path / CONFIG).exists():
            return [resume_run(path, watch, federation, model)]
        return [start_run(config, path, watch, federation, model)]

    def plain(self) -> dict[str, Any]:
        """The task as JSON allows it, for another process."""
        return {"title": self.title, "runs": [[str(path), to_toml(config)] for path, config in self.runs]}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Task:
        return Task(plain["title"], tuple((Path(path), from_table(tomllib.loads(t))) for path, t in plain["runs"]))


class WorkerLost(ValueError):
    """Workers died, each with a run that is not finished."""


@contextmanager
def start_workers(size: int, threads: int, command: Sequence[str] | None = None) -> Iterator[list[Worker]]:
    """Processes that wait for tasks; none is left at the end."""
    told = [json.dumps(sys.path), json.dumps(sys.argv), str(threads)]
    command = command or [sys.executable, "-P", "-c", SERVE, *told]
    # libraries of PyTorch begin with as many threads as there are cores, whatever it is told afterwards
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    pipe, workers = subprocess.PIPE, list[Worker]()
    try:
        for _ in range(size):
            with interrupts_held():
                workers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8", env=environment))
        yield workers
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
            for end in (worker.stdin, worker.stdout):
                with suppress(OSError):  # a task that nobody will read any more
                    end.close()  # type: ignore[union-attr]


def work(workers: Sequence[Worker], tasks: Sequence[Task], arrived: Arrived, tell: Tell) -> None:
    """Have all tasks done, as long as a worker is left; what was lost is told."""
    waiting, lost, one = deque(tasks), list[str](), threading.Lock()
    pool = ThreadPoolExecutor(len(workers))

    def tell_lines(lines: list[Line]) -> None:
        with one:
            arrived(lines)

    try:
        for end in as_completed([pool.submit(_drive, worker, waiting, tell_lines) for worker in workers]):
            if why := end.result():
                lost.append(why)
                tell(f"{why}; the other runs go on")
    finally:
        pool.shutdown(wait=False)
    if lost:
        raise WorkerLost("; ".join(lost) + (f"; {len(waiting)} more were not begun" if waiting else ""))


def _drive(worker: Worker, waiting: deque[Task], arrived: Arrived) -> str:
    """Give a worker one task after the other, and pass on what it says; how it was lost, if it was."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(IndexError):  # nothing is left to do
        while True:
            task, news = waiting.popleft(), {"kind": ""}
            with suppress(OSError, json.JSONDecodeError):  # it has died, in the middle of a line perhaps
                worker.stdin.write(json.dumps(task.plain()) + "\n")
                worker.stdin.flush()
                while news["kind"] not in ("done", "failed"):
                    news = json.loads(worker.stdout.readline())
                    if news["kind"] == "round":
                        arrived([line for told in news["lines"] if (line := from_json(told)) is not None])
            if news["kind"] == "failed":
                raise ValueError(f"{task.title}: {news['sentence']}")
            if news["kind"] != "done":
                return f"{task.title}: its process {describe_end(worker.wait())}"
    return ""


def serve() -> None:
    """A worker: do the tasks that arrive; the end of its standard input is its own end."""
    become_worker()
    _, _, argv, threads = sys.argv
    sys.argv[:] = json.loads(argv)  # a run's folder keeps the command
    up = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(kind: str, **more: Any) -> None:
        try:
            up.write(json.dumps({"kind": kind, **more}) + "\n")
            up.flush()
        except OSError:  # nobody listens any more
            os._exit(1)

    warnings.simplefilter("ignore", NoResult)  # it stands in the run's folder, and the parent says it at the end
    torch.set_num_threads(int(threads))
    for line in sys.stdin:
        task = Task.from_plain(json.loads(line))
        try:
            task.do(lambda round, rounds, lines: say("round", lines=[to_json(lines[0])]))
        except Exception as error:
            if os.environ.get("POSTERITY_DEBUG"):
                traceback.print_exception(error)
            say("failed", sentence=str(error) if isinstance(error, ValueError) else describe_error(error))
        else:
            say("done")


# --- a process and those that it starts
def become_worker() -> None:
    """Leave Ctrl-C to the parent, and on Linux have the kernel end this process with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `interrupts_held`
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """For starting a worker: until it ignores Ctrl-C, it does not notice it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe_end(code: int) -> str:
    """How a process ended, from its return code: `was killed by SIGKILL (…)`, `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = " (by somebody, or by the system for want of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{why}"
