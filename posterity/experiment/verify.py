"""What is made sure of before a run's folder is used: its own files, its configuration, its lines, room on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posterity import __version__
from posterity.experiment import integrity, run_folder
from posterity.experiment.integrity import ADVICE, DamagedFile
from posterity.experiment.run_folder import CONFIG, LOCK, METRICS, RUN

FILES = re.compile(
    rf"{re.escape(CONFIG)}|{re.escape(RUN)}|{re.escape(METRICS)}|{LOCK}|personal|clients|.*\.(safetensors|part|tmp)"
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
THREADS = 4096  # more than any machine is asked for


def check_files(folder: Path) -> None:
    """Refuse a run's folder whose files are links to somewhere else, or no files."""
    if folder.is_dir():
        integrity.refuse_links(folder, [name for name in os.listdir(folder) if FILES.fullmatch(name)])
    for below in (folder / "personal", folder / "clients"):
        if below.is_dir():
            integrity.refuse_links(below, os.listdir(below))


def write_run(folder: Path, facts: Mapping[str, Any], config: str) -> None:
    """`run.json`, and `config.toml`, whose checksum it holds; the latter last: now the folder is a run."""
    data = config.encode()
    sums = {**facts.get("checksums", {}), CONFIG: integrity.checksum(data)}
    run_folder.write_json(folder / RUN, {**facts, "checksums": sums})
    run_folder.write_atomic(folder / CONFIG, data)


def read_facts(folder: Path) -> dict[str, Any]:
    """`run.json` of a run, whose configuration is the one that it began with."""
    check_files(folder)
    if not (folder / RUN).exists():
        raise DamagedFile(f"{folder} has a {CONFIG} and no {RUN}: it is half a copy; {ADVICE}")
    facts = run_folder.read_json(folder / RUN)
    if facts.get("checksums", {}).get(CONFIG, now := integrity.checksum_of(folder / CONFIG)) != now:
        raise DamagedFile(
            f"{folder / CONFIG} was changed since the run began, and a run has one configuration: put the old text "
            f"back, or start a new run with the new one (posterity run --config {folder / CONFIG} --out ANOTHER)"
        )
    threads = facts.get("threads")
    if not (isinstance(threads, int) and 0 < threads <= THREADS) or ":" in str(facts.get("engine")):
        raise DamagedFile(f"{folder / RUN} was not written by a run (threads: {threads!r}, engine: "
                          f"{facts.get('engine')!r}); {ADVICE}")  # fmt: skip
    return facts


def remark_versions(facts: Mapping[str, Any], folder: Path) -> None:
    """Say that a run goes on with other versions than it began with."""
    now = {"posterity": __version__, "torch": torch.__version__}
    other = [f"{name} {facts[name]} (here: {now[name]})" for name in now if facts.get(name, now[name]) != now[name]]
    if other:
        warnings.warn(f"{folder} was begun with {' and '.join(other)}: the last digits may differ from those of a run "
                      "that was never interrupted", stacklevel=2)  # fmt: skip


class Lines:
    """`metrics.jsonl` as far as it belongs to a checkpoint, with its checksum, which grows with it."""

    def __init__(self, path: Path) -> None:
        self.path, self.length, self.sum = path, 0, hashlib.sha256()

    def checksum(self, length: int) -> str:
        """The checksum of the first bytes; what was read for the last is not read again."""
        if length > self.length:
            with integrity.open_regular(self.path, "rb") as file:
                file.seek(self.length)
                while self.length < length and (piece := file.read(min(integrity.PIECE, length - self.length))):
                    self.sum.update(piece)
                    self.length += len(piece)
        if length != self.length:
            raise DamagedFile(f"{self.path} holds {self.length:,} bytes, but the checkpoint counts {length:,}: it was "
                              f"cut off, or copied while the run wrote; {ADVICE}")  # fmt: skip
        return self.sum.hexdigest()

    def recover(self, facts: Mapping[str, Any], begun: bool, cut: bool) -> list[dict[str, Any]]:
        """The lines that belong to a checkpoint; what lies behind them is cut off, never made up."""
        length = facts["length"]
        if length and not self.path.exists():
            raise DamagedFile(f"{self.path} is missing, and the checkpoint counts {length:,} bytes of it; {ADVICE}")
        if self.checksum(length) != facts.get("lines", self.sum.hexdigest()):
            raise DamagedFile(f"{self.path} is not as it was written: the checksum in the checkpoint does not agree; "
                              f"{ADVICE}")  # fmt: skip
        if not begun and self.path.exists() and integrity.read_regular(self.path).count(b'"kind": "round"') > 1:
            raise DamagedFile(f"{self.path.parent} has lines of several rounds and no checkpoint: one is written after "
                              f"the first round; {ADVICE}")  # fmt: skip
        if cut:
            with integrity.open_regular(self.path, "ab") as file:
                file.truncate(length)
        return run_folder.read_lines(self.path, length)


def check_state(leaves: Mapping[str, torch.Tensor], path: Path, only_read: bool) -> None:
    """Refuse to go on from a state that holds NaN; one that is only read is remarked."""
    floats = {name: leaf for name, leaf in leaves.items() if name.startswith("state/") and leaf.is_floating_point()}
    name = next((name for name, leaf in floats.items() if bool(leaf.isnan().any())), None)
    if name is None:
        return
    sentence = f"{path} holds NaN at {name}: the run has diverged, or the file was edited"
    if not only_read:
        raise ValueError(f"{sentence}. Nothing can be learned from there: begin again in another folder, with a "
                         "smaller step size (--lr) if it diverged")  # fmt: skip
    warnings.warn(sentence, stacklevel=2)


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Verify what finished runs in or under a folder hold, before it is reported; a page may be written elsewhere."""
    check_files(folder)
    for path in sorted(folder.rglob(RUN)) if folder.is_dir() else ():
        check_files(path.parent)
        facts = run_folder.read_json(path)
        told = facts.get("checksums", {}) if facts.get("status") == "finished" else {}
        for name in (CONFIG, METRICS):
            if name in told and integrity.checksum_of(path.parent / name) != told[name]:
                raise integrity.damaged(path.parent / name)
    try:
        yield
    except OSError as error:
        if error.errno not in FULL + CLOSED:
            raise
        raise ValueError(f"the page cannot be written to {folder} ({error.strerror}): the runs are as they were; give "
                         f"another place (posterity report {folder} --out PAGE.html)") from error  # fmt: skip


def make_folder(folder: Path) -> None:
    """Make a folder to write to, or say in a sentence why it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in FULL + CLOSED:
            raise
        raise ValueError(f"{folder} cannot be made ({error.strerror}: {error.filename}): give a folder where you may "
                         "write (--out)") from error  # fmt: skip


@contextmanager
def disk_told(folder: Path) -> Iterator[None]:
    """A disk that is full, or a folder that may not be written, in a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL + CLOSED or not _within(error.filename, folder):
            raise
        again = f"go on with 'posterity resume {folder}'" if any(folder.rglob(CONFIG)) else "start the run again"
        if error.errno in FULL:
            raise ValueError(f"the disk of {folder} is full ({error.strerror}). Nothing that was written is lost: make "
                             f"space, and {again}") from error  # fmt: skip
        raise ValueError(f"{folder} cannot be written ({error.strerror}: {error.filename}), and this run is not at its "
                         f"end: copy the folder to where you may write, or mend its rights, and {again}"
                         ) from error  # fmt: skip


def _within(name: Any, folder: Path) -> bool:
    """Whether an error is about the run: one without a name came from writing to a file that was open."""
    return name is None or Path(os.path.abspath(name)).is_relative_to(os.path.abspath(folder))


__all__ = [
    "Lines", "check_files", "check_state", "disk_told", "make_folder", "read_facts", "remark_versions", "reported",
    "write_run",
]  # fmt: skip
