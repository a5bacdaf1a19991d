"""Runs at once in processes of their own, which end with this one.

A worker is Python again. Tasks go to its standard input as lines of JSON and news come back from its standard output;
what a method prints goes to standard error. Nothing is pickled and nothing listens. Once a second a worker says that
it is there: one that is stopped or stuck is named, with its run, and waited for; one that died is named too, and the
others go on. A run that fails ends the comparison, as it would without workers.

What a comparison has to do, piece by piece: one run, or several seeds of it at once.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import tomllib
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posterity.core.network import Network
from posterity.data.federation import Federation
from posterity.engine.parent import WORKER, become_worker, interrupts_held, is_stopped, tell_end
from posterity.experiment.result import Result
from posterity.experiment.run import Watch, resume_run, run_seeds, start_run
from posterity.runs import folder as run_folder
from posterity.settings.config import Config, from_table, to_toml

Run = tuple[Path, Config]


@dataclass(frozen=True)
class Task:
    """One run of a comparison, and the other seeds that run at once with it."""

    title: str
    path: Path
    config: Config
    others: tuple[Run, ...] = ()

    @staticmethod
    def of(runs: Sequence[Run], name: str = "") -> Task:
        """The task of one run, or of several seeds at once; `name` is the method's in this comparison."""
        seeds = ", ".join(str(config.seed) for _, config in runs)
        title = f"{name or runs[0][1].method} seed{'s' * (len(runs) > 1)} {seeds}"
        return Task(title, *runs[0], tuple(runs[1:]))

    @property
    def runs(self) -> tuple[Run, ...]:
        return ((self.path, self.config), *self.others)

    def do(self, watch: Watch, federation: Federation | None = None, model: Network | None = None) -> list[Result]:
        """Start it, or go on with it; with a federation or a network of the caller's own where they are given."""
        if self.others:
            paths, configs = zip(*self.runs, strict=True)
            return run_seeds(configs, paths, watch, federation, model)
        if (self.path / run_folder.CONFIG).exists():
            return [resume_run(self.path, watch, federation, model)]
        return [start_run(self.config, self.path, watch, federation, model)]

    def plain(self) -> dict[str, Any]:
        """The task as JSON allows it, for another process."""
        return {"title": self.title, "runs": [[str(path), to_toml(config)] for path, config in self.runs]}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Task:
        runs = [(Path(path), from_table(tomllib.loads(text))) for path, text in plain["runs"]]
        return Task(plain["title"], *runs[0], tuple(runs[1:]))


BEAT = 1.0  # seconds between signs of life
SILENCE = 30.0  # seconds without one after which a worker is named
TICK = 0.2  # seconds between looks at the workers
SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from posterity.experiment.workers import serve; serve()"
)
News = dict[str, Any]
Arrived = Callable[[list[Any]], None]  # a round's lines
Tell = Callable[[str], None]  # a sentence for the user


class WorkerLost(ValueError):
    """Workers died, each with a run that is not finished."""


@dataclass(eq=False)
class Worker:
    """A process, what it is doing, and when it was last heard of."""

    process: subprocess.Popen[str]
    heard: float
    task: Task | None = None
    named: bool = False  # as silent, and not heard of since

    def give(self, task: Task) -> None:
        self.task = task
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died: the reader will say so
            self.process.stdin.write(json.dumps(task.plain()) + "\n")
            self.process.stdin.flush()

    def tell_silence(self, now: float) -> str:
        """That a worker has not been heard of, and what may be done about it."""
        assert self.task is not None
        pid = self.process.pid
        if is_stopped(pid):
            return (
                f"{self.task.title}: its process {pid} is stopped; 'kill -CONT {pid}' lets it go on; it is waited for"
            )
        return (f"{self.task.title}: nothing was heard of its process {pid} for {now - self.heard:.0f} s: it is stuck, "
                "or the machine is short of memory; it is waited for (Ctrl-C stops all)")  # fmt: skip


class Workers:
    """Workers, from their start to their end."""

    def __init__(self, size: int, threads: int, command: Sequence[str] | None = None) -> None:
        self.news: queue.SimpleQueue[tuple[Worker, News | None]] = queue.SimpleQueue()
        self.workers: list[Worker] = []
        told = [json.dumps(sys.path), json.dumps(sys.argv), str(threads)]
        self.command = [sys.executable, "-P", "-c", SERVE, *told] if command is None else list(command)
        self.size = size
        self.environment = {"OMP_NUM_THREADS": str(threads), **os.environ, WORKER: "1"}
        """Libraries of PyTorch begin with as many threads as there are cores, whatever it is told afterwards."""

    def __enter__(self) -> Workers:
        try:
            for _ in range(self.size):
                self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def work(self, tasks: Sequence[Task], arrived: Arrived, tell: Tell) -> None:
        """Have all tasks done; what has not been begun when no worker is left stays undone, and this is told."""
        waiting, lost = deque(tasks), list[str]()
        for worker in self.workers:
            self._next(worker, waiting)
        looked = time.monotonic()
        while any(worker.task for worker in self.workers):
            looked = self._look_after(looked, tell)
            try:
                worker, news = self.news.get(timeout=TICK)
            except queue.Empty:
                continue
            if news is None:
                if (sentence := self._bury(worker)) is not None:
                    lost.append(sentence)
                    tell(f"{sentence}; the other runs go on")
                continue
            if self._hear(worker, news, arrived, tell):
                self._next(worker, waiting)
        if lost:
            left = f"; {len(waiting)} more were not begun" if waiting else ""
            raise WorkerLost("; ".join(lost) + left)

    def _hear(self, worker: Worker, news: News, arrived: Arrived, tell: Tell) -> bool:
        """Take in what a worker says; whether it has done its task."""
        assert worker.task is not None or news["kind"] == "beat"
        worker.heard = time.monotonic()
        if worker.named and worker.task is not None:
            tell(f"{worker.task.title}: its process is heard of again")
            worker.named = False
        if news["kind"] == "round":
            arrived(news["lines"])
        if news["kind"] == "failed" and worker.task is not None:
            raise ValueError(f"{worker.task.title}: {news['sentence']}")
        return bool(news["kind"] == "done")

    def _next(self, worker: Worker, waiting: deque[Task]) -> None:
        worker.task = None
        if waiting:
            worker.give(waiting.popleft())

    def _bury(self, worker: Worker) -> str | None:
        """A worker's pipe has closed: what is to be said about it, if it had something to do."""
        self.workers.remove(worker)
        code = worker.process.wait()
        return None if worker.task is None else f"{worker.task.title}: its process {tell_end(code)}"

    def _look_after(self, looked: float, tell: Tell) -> float:
        """Name those that have been silent for too long, unless this process itself was away."""
        now = time.monotonic()
        for worker in self.workers:
            if now - looked > BEAT + TICK:  # stopped, or very busy: what they said meanwhile has not been read yet
                worker.heard += now - looked
            if worker.task is not None and not worker.named and now - worker.heard > SILENCE:
                worker.named = True
                tell(worker.tell_silence(now))
        return now

    def _start(self) -> None:
        with interrupts_held():
            process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       encoding="utf-8", env=self.environment)  # fmt: skip
        worker = Worker(process, time.monotonic())
        self.workers.append(worker)
        threading.Thread(target=self._read, args=(worker,), daemon=True).start()

    def _read(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        with suppress(ValueError):  # half a line: it was killed while it wrote
            for line in worker.process.stdout:
                self.news.put((worker, json.loads(line)))
        self.news.put((worker, None))

    def _end(self) -> None:
        """Nothing is left: runs may be killed at any instant."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                assert pipe is not None
                with suppress(OSError):  # a task that nobody will read any more
                    pipe.close()


def serve() -> None:
    """A worker: do the tasks that arrive; the end of its standard input is its own end."""
    become_worker()
    _, _, argv, threads = sys.argv
    sys.argv[:] = json.loads(argv)  # a run's folder keeps the command
    up, lock, tasks = os.fdopen(os.dup(1), "w", encoding="utf-8"), threading.Lock(), queue.SimpleQueue[News]()
    os.dup2(2, 1)

    def say(kind: str, **more: Any) -> None:
        with lock:
            try:
                up.write(json.dumps({"kind": kind, **more}) + "\n")
                up.flush()
            except OSError:  # nobody listens any more
                os._exit(1)

    for target, about in ((_listen, tasks), (_beat, say)):
        threading.Thread(target=target, args=(about,), daemon=True).start()
    _do_all(tasks, say, int(threads))


def _listen(tasks: queue.SimpleQueue[News]) -> None:
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(1)


def _beat(say: Callable[[str], None]) -> None:
    while True:
        say("beat")
        time.sleep(BEAT)


def _do_all(tasks: queue.SimpleQueue[News], say: Callable[..., None], threads: int) -> None:
    import torch  # after the first sign of life: it takes seconds

    from posterity.experiment.divergence import NoResult

    warnings.simplefilter("ignore", NoResult)  # it stands in the run's folder, and the parent says it at the end
    torch.set_num_threads(threads)
    while True:
        task = Task.from_plain(tasks.get())
        try:
            task.do(lambda round, rounds, lines: say("round", lines=lines[:1]))
        except Exception as error:
            say("failed", sentence=_sentence(error))
        else:
            say("done")


def _sentence(error: Exception) -> str:
    """What went wrong; of what was not said in a sentence also the place."""
    from posterity.settings.plugins import describe_error

    if os.environ.get("POSTERITY_DEBUG"):
        traceback.print_exception(error)
    return str(error) if isinstance(error, ValueError) else describe_error(error)
