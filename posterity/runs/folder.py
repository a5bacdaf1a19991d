"""A run's folder: written so that a kill at any instant loses nothing but time.

    config.toml              the resolved configuration
    run.json                 versions, federation, status
    metrics.jsonl            one line per round and per score
    checkpoint.safetensors   State, personal records, and how far metrics.jsonl belonged to them
    checkpoint.previous.…    the one before, should the last be torn or damaged
    personal/                personal records in a file (`store = "disk"`)

Whole files are written beside their place and moved over it. Lines are appended and forced to disk before the
checkpoint that counts them; what lies behind that count is cut off when the run is resumed. Runs that go together
write their checkpoints together: each beside its place, then a pledge in the folder above, then all are moved over.
Every file is verified when it is read (`integrity.py`).

What is made sure of before a run's folder is used: its own files, its configuration, its lines, room on the disk.

Runs that were done again are moved aside (`seed-0.before-1`): kept, but in no table, and not gone on with.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from posterity.core.tree import Tree, tree_filled, tree_named, unshared
from posterity.runs import files as integrity
from posterity.runs.files import ADVICE, DamagedFile
from posterity.runs.lines import noted, restored
from posterity.version import __version__

CHECKPOINT, METRICS, CONFIG, RUN = "checkpoint.safetensors", "metrics.jsonl", "config.toml", "run.json"
PREVIOUS, NEXT, PLEDGE = "checkpoint.previous.safetensors", "checkpoint.next.safetensors", "together.json"
LOCK = "lock"
PLAN = "comparison.json"  # what a comparison is to run, so that `resume` knows what has not begun
COUNTS = ("round", "length", "commit")  # facts that are whole numbers


def write_atomic(path: Path, data: bytes) -> None:
    """All of `data` at `path`, or what was there before."""
    part = path.with_name(path.name + ".part")
    try:
        with integrity.open_regular(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # a disk that is full has better uses
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force names to disk: a file that was moved is at its new place even after a power cut."""
    with suppress(OSError):  # not every system opens folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, integrity.seal_json(clean(value)))


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` was given."""
    return integrity.open_json(path)


def clean(value: Any) -> Any:
    """`value` as JSON allows it: numbers that are not finite become null (`read_lines` knows which were infinite)."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def append_lines(path: Path, lines: list[dict[str, Any]]) -> int:
    """Append JSON lines, force them to disk, and return the file's length."""
    with integrity.open_regular(path, "ab") as file:
        file.write("".join(json.dumps(clean(noted(line))) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_lines(path: Path, length: int | None = None) -> list[dict[str, Any]]:
    """The lines of a file, or of its first bytes, with the infinite scores that they were written from."""
    data = integrity.read_regular(path) if path.exists() or length is None else b""
    try:
        return [restored(json.loads(line)) for line in data[:length].decode().splitlines() if line.strip()]
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise DamagedFile(f"{path} holds a line that is no JSON object ({error}); {integrity.ADVICE}") from None


def save_checkpoint(folder: Path, trees: Mapping[str, Tree], facts: Mapping[str, Any], name: str = CHECKPOINT) -> None:
    """Named trees and facts in one file, with its checksum."""
    leaves = {f"{top}/{name}": leaf for top, tree in trees.items() for name, leaf in tree_named(tree)}
    flat = unshared({n: leaf.detach().cpu().contiguous() for n, leaf in leaves.items()})
    meta = {"format": integrity.FORMAT, "facts": json.dumps(facts), "checksum": integrity.BLANK}
    write_atomic(folder / name, integrity.sealed(save(flat, meta)))


def save_checkpoints(folders: Sequence[Path], packs: Sequence[tuple[Mapping[str, Tree], Mapping[str, Any]]]) -> None:
    """The checkpoints of runs that go together: after a kill at any instant, all are the new ones or none is."""
    for folder, pack in zip(folders, packs, strict=True):
        save_checkpoint(folder, *pack, NEXT)
    if len(folders) > 1:
        write_json(_pledge(folders), {"commit": packs[0][1]["commit"], "runs": [folder.name for folder in folders]})
    for folder in folders:
        _promote(folder)


def _promote(folder: Path) -> None:
    """The next checkpoint becomes the last, and the last the previous; between two moves the previous stands alone."""
    with suppress(FileNotFoundError):
        os.replace(folder / CHECKPOINT, folder / PREVIOUS)
    os.replace(folder / NEXT, folder / CHECKPOINT)
    sync_folder(folder)


def keep_pledge(folders: Sequence[Path]) -> None:
    """End what a kill interrupted: checkpoints that were pledged come to their places, others are dropped."""
    path = _pledge(folders)
    pledged = read_json(path) if path.exists() else {}
    commit = pledged["commit"] if pledged.get("runs") == [folder.name for folder in folders] else 0
    for folder in folders:
        try:
            found = _facts(folder / NEXT) if (folder / NEXT).exists() else None
        except DamagedFile:  # then the checkpoint before counts, for all of them
            found = None
        if found is not None and found["commit"] == commit:
            _promote(folder)
        else:
            (folder / NEXT).unlink(missing_ok=True)


def _pledge(folders: Sequence[Path]) -> Path:
    """Where runs that go together pledge to; their folders stand side by side."""
    return folders[0].parent / PLEDGE


def valid_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by their number, the newest first; of those that are damaged only the damage is told."""
    found, damages = {}, []
    for path in (folder / CHECKPOINT, folder / PREVIOUS):
        try:
            found[int(_facts(path)["commit"])] = path
        except FileNotFoundError:
            continue
        except DamagedFile as error:
            damages.append(error)
    if damages and not found:
        raise damages[0]
    for damage in damages:
        used = (
            "the checkpoint before it" if folder / CHECKPOINT not in found.values() else "the last one, which is whole,"
        )
        warnings.warn(f"{str(damage).partition(';')[0]}; {used} is used", stacklevel=2)
    return found


def last_common(folders: Sequence[Path]) -> list[Path | None]:
    """The checkpoint of each of the runs that go together: the last that is whole in all; None: none yet."""
    found = [valid_checkpoints(folder) for folder in folders]
    if not any(found):
        return [None] * len(found)
    common = set.intersection(*(set(each) for each in found))
    if not common:
        told = ", ".join(f"{folder.name}: {max(each, default=0)}" for folder, each in zip(folders, found, strict=True))
        raise DamagedFile(f"the runs in {folders[0].parent} have no checkpoint in common ({told}): they are files of "
                          f"several copies; {integrity.ADVICE}")  # fmt: skip
    return [each[max(common)] for each in found]


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Leaves by name and facts of the last checkpoint that is whole; None if there is none yet."""
    path = last_common([folder])[0]
    return None if path is None else read_saved(path)


def read_saved(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `save_checkpoint` was given, verified."""
    facts = _facts(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, RuntimeError) as error:
        raise DamagedFile(f"{path} cannot be read ({error}); {integrity.ADVICE}") from None


def _facts(path: Path) -> dict[str, Any]:
    """The facts of a file of tensors that is as it was written."""
    try:
        facts: dict[str, Any] = json.loads(integrity.check_tensors(path)["facts"])
        wrong = [name for name in COUNTS if name in facts and not _is_count(facts[name])]
    except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise DamagedFile(f"{path} holds no facts of a checkpoint ({error}); {integrity.ADVICE}") from None
    if wrong:
        raise DamagedFile(
            f"{path}: {wrong[0]} is {facts[wrong[0]]!r}, which is no number of anything; {integrity.ADVICE}"
        )
    return facts


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def restore(template: Tree, leaves: Mapping[str, torch.Tensor], top: str) -> Tree:
    """The tree saved under `top`, in the shape of `template`; leaves that do not fit are named."""
    for name, leaf in tree_named(template, top):
        if name not in leaves or leaves[name].shape != leaf.shape:
            got = tuple(leaves[name].shape) if name in leaves else "nothing"
            raise ValueError(
                f"the checkpoint has {got} at {name}, but {tuple(leaf.shape)} is expected: it belongs to another "
                "method, model or federation"
            )
    return tree_filled(template, {n: t for n, t in leaves.items() if n.startswith(f"{top}/")}, top)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuse a second process on the same run; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        yield
        return
    with integrity.open_regular(folder / LOCK, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} is being written by another process; wait for it or stop it") from None
        yield


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
    write_json(folder / RUN, {**facts, "checksums": sums})
    write_atomic(folder / CONFIG, data)


def read_facts(folder: Path) -> dict[str, Any]:
    """`run.json` of a run, whose configuration is the one that it began with."""
    check_files(folder)
    if not (folder / RUN).exists():
        raise DamagedFile(f"{folder} has a {CONFIG} and no {RUN}: it is half a copy; {ADVICE}")
    facts = read_json(folder / RUN)
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
        return read_lines(self.path, length)


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
        facts = read_json(path)
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


MARK = ".before-"
NAME = re.compile(re.escape(MARK) + r"\d+$")


def is_aside(path: Path, folder: Path) -> bool:
    """Whether a run below `folder` was moved aside; named itself, it is a run like any other."""
    return any(NAME.search(part) for part in path.relative_to(folder).parts)
