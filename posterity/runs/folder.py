"""A run's folder: written so that a kill at any instant loses nothing but time.

    config.toml              the resolved configuration
    run.json                 versions, federation, status
    metrics.jsonl            one line per round and per score (`lines.py`)
    checkpoint.safetensors   State, personal records, and how far metrics.jsonl belonged to them
    checkpoint.previous.…    the one before, should the last be torn or damaged
    personal/                personal records in a file (`store = "disk"`)

Lines are appended and forced to disk before the checkpoint that counts them; what lies behind that count is cut off
when the run is resumed. Runs that go together go on from the last checkpoint that all of them have. Every file is
verified when it is read (`files.py`).

Runs that were done again are moved aside (`seed-0.before-1`): kept, but in no table, and not gone on with.
"""

import errno
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from posterity.core.tree import Tree, tree_filled, tree_named, unshared
from posterity.runs import files
from posterity.runs.files import ADVICE, LOCK, DamagedFile
from posterity.runs.lines import FOLDER, Line, read_lines

CHECKPOINT, METRICS, CONFIG, RUN = "checkpoint.safetensors", "metrics.jsonl", "config.toml", "run.json"
PREVIOUS = "checkpoint.previous.safetensors"
PLAN = "comparison.json"  # what a comparison is to run, so that `resume` knows what has not begun
PERSONAL = "personal"
MARK = ".before-"  # in the name of a run that was done again, before its number
THREADS = 4096  # more than any machine is asked for
OURS = re.compile(
    rf"{re.escape(CONFIG)}|{re.escape(RUN)}|{re.escape(METRICS)}|{LOCK}|{PERSONAL}|{FOLDER}|.*\.(safetensors|part|tmp)"
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


# --- runs
def runs_below(folder: Path, pattern: str = "**") -> list[Path]:
    """The runs in or below a folder that have begun, without those that were moved aside."""
    found = sorted(path.parent for path in folder.glob(f"{pattern}/{CONFIG}"))
    return [path for path in found if not is_superseded(path, folder)]


def is_superseded(path: Path, folder: Path) -> bool:
    """Whether a run below `folder` was moved aside; named itself, it is a run like any other."""
    return any(re.search(rf"{re.escape(MARK)}\d+$", part) for part in path.relative_to(folder).parts)


def place_aside(path: Path) -> Path:
    """Where a run, or a file of trials, is moved when it is done again."""
    return next(place for n in count(1) if not (place := path.with_name(f"{path.name}{MARK}{n}")).exists())


def is_finished(folder: Path) -> bool:
    return (folder / RUN).exists() and files.read_json(folder / RUN).get("status") == "finished"


def check_files(folder: Path) -> None:
    """Refuse a run's folder whose files are links to somewhere else, or no files."""
    if folder.is_dir():
        files.refuse_links(folder, [name for name in os.listdir(folder) if OURS.fullmatch(name)])
    for below in (folder / PERSONAL, folder / FOLDER):
        if below.is_dir():
            files.refuse_links(below, os.listdir(below))


def write_run(folder: Path, facts: Mapping[str, Any], config: str) -> None:
    """`run.json`, and `config.toml`, whose checksum it holds; the latter last: now the folder is a run."""
    data = config.encode()
    sums = {**facts.get("checksums", {}), CONFIG: files.checksum(data)}
    files.write_json(folder / RUN, {**facts, "checksums": sums})
    files.write_atomic(folder / CONFIG, data)


def read_run(folder: Path) -> dict[str, Any]:
    """`run.json` of a run, whose configuration is the one that it began with."""
    check_files(folder)
    if not (folder / RUN).exists():
        raise DamagedFile(f"{folder} has a {CONFIG} and no {RUN}: it is half a copy; {ADVICE}")
    facts = files.read_json(folder / RUN)
    if facts["checksums"][CONFIG] != files.checksum_of(folder / CONFIG):
        raise DamagedFile(
            f"{folder / CONFIG} was changed since the run began, and a run has one configuration: put the old text "
            f"back, or start a new run with the new one (posterity run --config {folder / CONFIG} --out ANOTHER)"
        )
    threads = facts.get("threads")
    if not (isinstance(threads, int) and 0 < threads <= THREADS) or ":" in str(facts.get("engine")):
        raise DamagedFile(f"{folder / RUN} was not written by a run (threads: {threads!r}, engine: "
                          f"{facts.get('engine')!r}); {ADVICE}")  # fmt: skip
    return facts


# --- checkpoints
def save_checkpoint(folder: Path, trees: Mapping[str, Tree], facts: Mapping[str, Any], name: str = CHECKPOINT) -> None:
    """Named trees and facts in one file, with its checksum."""
    leaves = {f"{top}/{name}": leaf for top, tree in trees.items() for name, leaf in tree_named(tree)}
    flat = unshared({n: leaf.detach().cpu().contiguous() for n, leaf in leaves.items()})
    meta = {"format": files.FORMAT, "facts": json.dumps(facts), "checksum": files.BLANK}
    files.write_atomic(folder / name, files.sealed(save(flat, meta)))


def save_checkpoints(folders: Sequence[Path], packs: Sequence[tuple[Mapping[str, Tree], Mapping[str, Any]]]) -> None:
    """The checkpoints of runs that go together; the one before, which all have, stays beside each."""
    for folder, pack in zip(folders, packs, strict=True):
        with suppress(FileNotFoundError):
            os.replace(folder / CHECKPOINT, folder / PREVIOUS)
        save_checkpoint(folder, *pack)


def valid_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by their number, the newest first; damaged ones are told of."""
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
    used = "the last one, which is whole," if folder / CHECKPOINT in found.values() else "the checkpoint before it"
    for damage in damages:
        warnings.warn(f"{str(damage).partition(';')[0]}; {used} is used", stacklevel=2)
    return found


def last_common(folders: Sequence[Path]) -> list[Path | None]:
    """The checkpoint of each of the runs that go together: the last that is whole in all; None: none yet."""
    found = [valid_checkpoints(folder) for folder in folders]
    common = set.intersection(*(set(each) for each in found))
    if not common and all(each.keys() <= {1} for each in found):  # a kill came before all of them had their first
        return [None] * len(found)
    if not common:
        told = ", ".join(f"{folder.name}: {max(each, default=0)}" for folder, each in zip(folders, found, strict=True))
        raise DamagedFile(f"the runs in {folders[0].parent} have no checkpoint in common ({told}): they are files of "
                          f"several copies; {ADVICE}")  # fmt: skip
    return [each[max(common)] for each in found]


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Leaves by name and facts of the last checkpoint that is whole; None if there is none yet."""
    path = last_common([folder])[0]
    return None if path is None else read_saved(path)


def read_saved(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `save_checkpoint` was given, verified."""
    if not path.exists():
        raise DamagedFile(f"{path} is missing, and the run has written it; {ADVICE}")
    facts = _facts(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, RuntimeError) as error:
        raise DamagedFile(f"{path} cannot be read ({error}); {ADVICE}") from None


def _facts(path: Path) -> dict[str, Any]:
    """The facts of a file of tensors that is as it was written."""
    try:
        return dict(json.loads(files.check_tensors(path)["facts"]))
    except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise DamagedFile(f"{path} holds no facts of a checkpoint ({error}); {ADVICE}") from None


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


# --- lines
def checksum_of_lines(path: Path, length: int) -> str:
    """The checksum of the first bytes of `metrics.jsonl`."""
    data = files.read_regular(path)[:length]
    if len(data) < length:
        raise DamagedFile(f"{path} holds {len(data):,} bytes, but the checkpoint counts {length:,}: it was cut off, or "
                          f"copied while the run wrote; {ADVICE}")  # fmt: skip
    return files.checksum(data)


def recover_lines(path: Path, facts: Mapping[str, Any], begun: bool, cut: bool) -> list[Line]:
    """The lines that belong to a checkpoint; what lies behind them is cut off, never made up."""
    length = facts["length"]
    if length and not path.exists():
        raise DamagedFile(f"{path} is missing, and the checkpoint counts {length:,} bytes of it; {ADVICE}")
    if begun and checksum_of_lines(path, length) != facts["lines"]:
        raise DamagedFile(f"{path} is not as it was written: the checksum in the checkpoint does not agree; {ADVICE}")
    if not begun and path.exists() and files.read_regular(path).count(b'"kind": "round"') > 1:
        raise DamagedFile(f"{path.parent} has lines of several rounds and no checkpoint: one is written after the "
                          f"first round; {ADVICE}")  # fmt: skip
    if cut:
        with files.open_regular(path, "ab") as file:
            file.truncate(length)
    return read_lines(path, length)


# --- disks
def check_finished(folder: Path) -> None:
    """Verify what finished runs in or under a folder hold."""
    check_files(folder)
    for path in sorted(folder.rglob(RUN)) if folder.is_dir() else ():
        check_files(path.parent)
        facts = files.read_json(path)
        for name in (CONFIG, METRICS) if facts.get("status") == "finished" else ():
            if files.checksum_of(path.parent / name) != facts.get("checksums", {}).get(name):
                raise files.damaged(path.parent / name)


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
def disk_explained(folder: Path) -> Iterator[None]:
    """A disk that is full, or a folder that may not be written, in a sentence."""
    try:
        yield
    except OSError as error:
        name = error.filename  # None: of a file that was open
        if error.errno not in FULL + CLOSED or not (
            name is None or Path(os.path.abspath(name)).is_relative_to(os.path.abspath(folder))
        ):
            raise
        again = f"go on with 'posterity resume {folder}'" if any(folder.rglob(CONFIG)) else "start the run again"
        if error.errno in FULL:
            raise ValueError(f"the disk of {folder} is full ({error.strerror}). Nothing that was written is lost: make "
                             f"space, and {again}") from error  # fmt: skip
        raise ValueError(f"{folder} cannot be written ({error.strerror}: {name}), and this run is not at its end: copy "
                         f"the folder to where you may write, or mend its rights, and {again}") from error  # fmt: skip
