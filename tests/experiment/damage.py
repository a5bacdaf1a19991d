"""Damage done to run folders, and what is noticed of it; `benchmarks/faults.py` may use it, too."""

from __future__ import annotations

import math
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from posterity.engine.disk_store import entries, read_journal
from posterity.experiment import run
from posterity.runs import files as run_files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

from .kills import remains

SMALL = {"dataset": "digits", "clients": 6, "rounds": 4, "evaluate_every": 2, "participation": "50%", "subset": "15%"}


@dataclass(frozen=True)
class Outcome:
    """What became of a folder that was taken up."""

    kind: str  # refused, remarked or silent
    text: str

    @property
    def noticed(self) -> bool:
        return self.kind != "silent"


class Interrupted(Exception):
    pass


def small(store: str = "memory", method: str = "fedmap", **more: object) -> Config:
    return Config(**{"method": method, "store": store, "set": {"model.hidden": "8"}, **SMALL, **more})


@contextmanager
def every_round(stop_in: int | None = None) -> Iterator[None]:
    """Checkpoints after every round; in round `stop_in` an interruption before the round's lines are written."""
    writing, append = run.WRITING, run_files.append_lines

    def interrupted(path, lines):
        if lines[0].get("round") == stop_in:
            raise Interrupted
        return append(path, lines)

    run.WRITING, run_files.append_lines = math.inf, interrupted
    try:
        yield
    except Interrupted:
        pass
    finally:
        run.WRITING, run_files.append_lines = writing, append


def make_run(folder: Path, store: str = "memory", stop_in: int | None = None, **more: object) -> Path:
    """A small run with a checkpoint after every round, finished, or interrupted in a round."""
    with every_round(stop_in):
        run.start_run(small(store, **more), folder)
    return folder


def own_files(folder: Path) -> list[str]:
    """The files of a run that hold something, by their names in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    return [str(path.relative_to(folder)) for path in files]


def places(path: Path, count: int) -> list[int]:
    """Positions in a file: its first byte, its last, and others evenly between them."""
    size = path.stat().st_size
    return sorted({round(i * (size - 1) / max(1, count - 1)) for i in range(count)})


def flip(path: Path, place: int, mask: int = 0x10) -> None:
    """Change bits of one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= mask
    path.write_bytes(data)


def take_up(folder: Path) -> Outcome:
    """Resume (or, if it is finished, load) a run; what was said about it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            run.resume_run(folder)
        except ValueError as error:
            return Outcome("refused", str(error))
    mine = [str(each.message) for each in told if str(folder) in str(each.message)]
    return Outcome("remarked" if mine else "silent", "; ".join(mine))


def put_back(whole: Path, name: str, place: int) -> bool:
    """Whether a byte is written anew: of a row that the journal holds or nobody has, or of a round to come."""
    if name.startswith("kept-"):
        return int(name[len("kept-") :][:6]) > run_folder.read_checkpoint(whole)[1]["round"]
    if name != "personal/rows.bin":
        return False
    journal, leaves = read_journal(whole / "personal/undo.bin"), run_folder.read_checkpoint(whole)[0]
    known = leaves["known/clients"].tolist()
    held = {client for client, _ in entries(journal, len(known))}
    return place // journal.width in held or not known[place // journal.width]


def after_flip(whole: Path, copy: Path, name: str, place: int, end: dict[str, object]) -> Outcome:
    """Take up a copy of a run with one byte changed; where it goes on, it must end as it would have."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    flip(copy / name, place)
    outcome = take_up(copy)
    if outcome.kind != "refused":
        assert remains(copy) == end, (name, place, outcome)
    return outcome


@contextmanager
def mounted(place: Path, size: str = "1m") -> Iterator[Path]:
    """A small disk, where disks may be mounted."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
