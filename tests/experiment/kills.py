"""Runs in a process of their own, killed at an instant: by the clock, or in the middle of a write."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch

from posterity.engine.disk_store import DiskStore
from posterity.experiment import run
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["posterity.experiment.run", "posterity.report"])
MOMENTS = ("line", "checkpoint", "move", "journal", "row")  # what is being written when the kill comes
GAP = "gap"  # between the move that makes the last checkpoint the previous, and the writing of the next


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str, count: int, end=die) -> None:
    """From now on, the `count`-th write of a kind is left half done and `end` is called."""
    left = [count]

    def due() -> bool:
        left[0] -= 1
        return left[0] == 0

    if moment == "line":
        append = files.append_lines

        def half_a_line(path, lines):
            if due():
                with path.open("ab") as file:
                    file.write(b'{"kind": "round", "rou')
                end()
            return append(path, lines)

        files.append_lines = half_a_line
    elif moment in ("checkpoint", "move"):
        whole = files.write_atomic

        def half_a_file(path, data):
            if path.name == run_folder.CHECKPOINT and due():
                cut = len(data) // 2 if moment == "checkpoint" else len(data)
                path.with_name(path.name + ".part").write_bytes(data[:cut])
                end()
            whole(path, data)

        files.write_atomic = half_a_file
    elif moment == "gap":
        move = os.replace

        def one_of_two_moves(source, target):
            move(source, target)
            if Path(target).name == run_folder.PREVIOUS and due():
                end()

        os.replace = one_of_two_moves
    elif moment == "journal":
        remember = DiskStore._remember

        def half_an_entry(self, index):
            if due():
                with self.journal.open("ab") as file:
                    file.write(np.int64(index[0]).tobytes() + b"xxx")
                end()
            remember(self, index)

        DiskStore._remember = half_an_entry
    elif moment == "row":
        remember = DiskStore._remember

        def half_a_row(self, index):
            remember(self, index)
            if due():
                self.file.file.seek(int(index[0]) * self.width)
                self.file.file.write(b"\xff" * (self.width // 2))
                end()

        DiskStore._remember = half_a_row


def go(config: Config, out: str, moment: str | None, count: int) -> None:
    """Start or resume; write a checkpoint after every round, so that there is something to interrupt."""
    torch.set_num_threads(1)
    run.WRITING = math.inf
    if moment:
        arm(moment, count)
    path = Path(out)
    if (path / run_folder.CONFIG).exists():
        run.resume_run(path)
    else:
        run.start_run(config, path)


def launch(config: Config, out: Path, moment: str | None = None, count: int = 1, seconds: float | None = None) -> int:
    """Run to the end or to the kill; the exit code (negative = the signal that ended it)."""
    worker = CONTEXT.Process(target=go, args=(config, str(out), moment, count))
    worker.start()
    if seconds is not None:
        time.sleep(seconds)
        worker.kill()
    worker.join()
    return worker.exitcode


def remains(out: Path) -> dict[str, object]:
    """Everything of a finished run that must not depend on kills: leaves, lines without times, rows on disk."""
    leaves, facts = run_folder.read_checkpoint(out)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in files.read_lines(out / run_folder.METRICS)]
    rows = out / "personal" / "rows.bin"
    return {
        "leaves": {name: leaf.numpy().tobytes() for name, leaf in leaves.items()},
        "round": facts["round"],
        "lines": lines,
        "rows": rows.read_bytes() if rows.exists() else b"",
    }
