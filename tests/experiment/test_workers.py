"""Runs at once in processes of their own: which of them fails, dies or stops is told, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from posterity.experiment import workers
from posterity.experiment.workers import Task, WorkerLost, describe_end, start_workers
from posterity.settings.config import Config

# A worker that needs no PyTorch: it does what the task's title says.
STUB = """
import json, os, signal, sys
def say(kind, **more): print(json.dumps({"kind": kind, **more}), flush=True)
for line in sys.stdin:
    title = json.loads(line)["title"]
    if title == "die": os.kill(os.getpid(), signal.SIGKILL)
    if title == "leave": os._exit(3)
    if title == "threads": title = os.environ["OMP_NUM_THREADS"]
    if title == "fail": say("failed", sentence="it went wrong")
    elif title == "sleep": signal.pause()
    else:
        say("round", lines=[{"kind": "note", "text": title}])
        say("done")
"""


@dataclass
class Order:
    """A task without a run."""

    title: str

    def plain(self):
        return {"title": self.title}


def work(titles: list[str], size: int = 2, tell=None, arrived=None, threads: int = 1):
    """What arrived and what was told, and the processes, all of which must be gone."""
    lines, told = [], []

    def heard(found):
        lines.extend(line.text for line in found)

    processes = []
    try:
        with start_workers(size, threads, [sys.executable, "-S", "-c", STUB]) as processes:
            workers.work(processes, [Order(title) for title in titles], arrived or heard, tell or told.append)
    finally:
        assert len(processes) == size
        assert all(process.returncode is not None for process in processes)
    return lines, told


def test_all_tasks_are_done_by_however_many():
    assert sorted(work(list("abcde"), 2)[0]) == list("abcde")
    assert work(["a"], 3)[0] == ["a"]


@pytest.mark.parametrize(("set_before", "found"), [(None, "3"), ("2", "2")])
def test_a_worker_begins_with_its_threads(set_before, found, monkeypatch):
    """Or with what the user has set: libraries of PyTorch look once, when they are loaded."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_before:
        monkeypatch.setenv("OMP_NUM_THREADS", set_before)
    assert work(["threads"], 1, threads=3)[0] == [found]


def test_a_run_that_fails_is_named_and_ends_the_others():
    with pytest.raises(ValueError, match=r"^fail: it went wrong$"):
        work(["sleep", "fail", "a"])


@pytest.mark.parametrize(("title", "how"), [("die", "killed by SIGKILL"), ("leave", "ended with exit code 3")])
def test_a_worker_that_dies_is_named_with_its_run_and_the_others_go_on(title, how):
    lines, told = [], []
    with pytest.raises(WorkerLost, match=f"^{title}: its process .*{how}[^;]*$"):
        work(["a", title, "b", "c"], 2, told.append, lambda found: lines.extend(line.text for line in found))
    assert lines == ["a", "b", "c"]
    assert len(told) == 1
    assert how in told[0]
    assert "the other runs go on" in told[0]


def test_when_all_have_died_what_was_not_begun_is_counted():
    with pytest.raises(WorkerLost, match=r"die: .*; 2 more were not begun$"):
        work(["die", "a", "b"], 1)


def test_whatever_interrupts_leaves_no_process():
    def stop(lines):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(["sleep", "a"], 2, arrived=stop)


ORPHANS = """
import sys, time
from posterity.experiment.workers import start_workers
stub = "import time; from posterity.experiment import workers; workers.become_worker(); print('{}', flush=True)"
stub += "; time.sleep(600)"
with start_workers(2, 1, [sys.executable, "-c", stub]) as processes:
    for process in processes:
        process.stdout.readline()
    print(*[process.pid for process in processes], flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker that reads nothing does not notice it at once")
def test_workers_die_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGSTOP)  # not even this keeps it
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(alive(pid) for pid in pids))


def alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "nothing happened for two minutes"
        time.sleep(0.02)


def test_ends_in_words():
    assert describe_end(3) == "ended with exit code 3"
    assert describe_end(-15) == "was killed by SIGTERM"
    assert "memory" in describe_end(-9)
    assert describe_end(-1000) == "was killed by signal 1000"


def test_a_task_travels_as_text():
    config = Config(method="fedavg+ft", seed=3, lr=0.1, set={"model.hidden": "8", "xi": 2.0})
    task = Task.of([(Path("a/seed-3"), config), (Path("a/seed-4"), Config(seed=4))], "mine")
    assert Task.from_plain(task.plain()) == task
    assert task.title == "mine seeds 3, 4"
