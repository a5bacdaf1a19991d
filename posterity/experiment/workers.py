"""What a comparison has to do, piece by piece, and processes that do it: several runs at once.

A worker is Python again. Tasks go to its standard input as lines of JSON and news come back from its standard output;
what a method prints goes to standard error. Nothing is pickled and nothing listens. Workers end with this process. One
that died is named, with its run, and the others go on. A run that fails ends the comparison, as it would without
workers.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import tomllib
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posterity.core.network import Network
from posterity.data.federation import Federation
from posterity.engine.parent import WORKER, become_worker, interrupts_held, tell_end
from posterity.experiment.divergence import NoResult
from posterity.experiment.result import Result
from posterity.experiment.run import Watch, resume_run, run_seeds, start_run
from posterity.runs import folder as run_folder
from posterity.runs.lines import Line, from_json, to_json
from posterity.settings.config import Config, from_table, to_toml
from posterity.settings.plugins import describe_error

SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from posterity.experiment.workers import serve; serve()"
)
Run = tuple[Path, Config]
News = dict[str, Any]
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
        """Start it, or go on with it; with a federation or a network of the caller's own where they are given."""
        if len(self.runs) > 1:
            paths, configs = zip(*self.runs, strict=True)
            return run_seeds(configs, paths, watch, federation, model)
        ((path, config),) = self.runs
        if (path / run_folder.CONFIG).exists():
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


class Workers:
    """Workers, from their start to their end."""

    def __init__(self, size: int, threads: int, command: Sequence[str] | None = None) -> None:
        told = [json.dumps(sys.path), json.dumps(sys.argv), str(threads)]
        self.size, self.command = size, command or [sys.executable, "-P", "-c", SERVE, *told]
        self.environment = {"OMP_NUM_THREADS": str(threads), **os.environ, WORKER: "1"}
        """Libraries of PyTorch begin with as many threads as there are cores, whatever it is told afterwards."""
        self.processes: list[subprocess.Popen[str]] = []
        self.news: queue.SimpleQueue[tuple[Task | None, News]] = queue.SimpleQueue()

    def __enter__(self) -> Workers:
        try:
            for _ in range(self.size):
                with interrupts_held():
                    self.processes.append(
                        subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         encoding="utf-8", env=self.environment))  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is left: runs may be killed at any instant."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # a task that nobody will read any more
                    pipe.close()  # type: ignore[union-attr]

    def work(self, tasks: Sequence[Task], arrived: Arrived, tell: Tell) -> None:
        """Have all tasks done; what has not been begun when no worker is left stays undone, and this is told."""
        waiting, lost, working = deque(tasks), list[str](), len(self.processes)
        for process in self.processes:
            threading.Thread(target=self._drive, args=(process, waiting), daemon=True).start()
        while working:
            task, news = self.news.get()
            if task is None:
                working -= 1
            elif news["kind"] == "round":
                arrived([line for told in news["lines"] if (line := from_json(told)) is not None])
            elif news["kind"] == "failed":
                raise ValueError(f"{task.title}: {news['sentence']}")
            elif news["kind"] == "lost":
                lost.append(f"{task.title}: its process {news['end']}")
                tell(f"{lost[-1]}; the other runs go on")
        if lost:
            raise WorkerLost("; ".join(lost) + (f"; {len(waiting)} more were not begun" if waiting else ""))

    def _drive(self, process: subprocess.Popen[str], waiting: deque[Task]) -> None:
        """Give a worker one task after the other, and pass on what it says."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(IndexError):  # nothing is left to do
            while True:
                task, news = waiting.popleft(), News(kind="")
                with suppress(OSError, ValueError):  # it has died, in the middle of a line perhaps
                    process.stdin.write(json.dumps(task.plain()) + "\n")
                    process.stdin.flush()
                    while news["kind"] not in ("done", "failed"):
                        news = json.loads(process.stdout.readline())
                        self.news.put((task, news))
                if news["kind"] not in ("done", "failed"):
                    self.news.put((task, {"kind": "lost", "end": tell_end(process.wait())}))
                    break
        self.news.put((None, {}))


def serve() -> None:
    """A worker: do the tasks that arrive; the end of its standard input is its own end."""
    become_worker()
    _, _, argv, threads = sys.argv
    sys.argv[:] = json.loads(argv)  # a run's folder keeps the command
    up, tasks = os.fdopen(os.dup(1), "w", encoding="utf-8"), queue.SimpleQueue[News]()
    os.dup2(2, 1)

    def say(kind: str, **more: Any) -> None:
        try:
            up.write(json.dumps({"kind": kind, **more}) + "\n")
            up.flush()
        except OSError:  # nobody listens any more
            os._exit(1)

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    warnings.simplefilter("ignore", NoResult)  # it stands in the run's folder, and the parent says it at the end
    torch.set_num_threads(int(threads))
    while True:
        task = Task.from_plain(tasks.get())
        try:
            task.do(lambda round, rounds, lines: say("round", lines=[to_json(lines[0])]))
        except Exception as error:
            if os.environ.get("POSTERITY_DEBUG"):
                traceback.print_exception(error)
            say("failed", sentence=str(error) if isinstance(error, ValueError) else describe_error(error))
        else:
            say("done")
