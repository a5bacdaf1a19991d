"""Checksums: what is read is what was written, or a sentence says which file is not.

A sealed file holds its own SHA-256, computed while 64 zeros stood in its place: one file, one move, no second file that
could be left behind. SHA-256 because processors compute it (1 GB/s on a slow core, where BLAKE2 reaches a third of
that) and because a CRC would also agree with some edits. Files from before checksums hold none and are accepted; those
that say a format which has one are not.

Where a run or a comparison may be written: a new folder, an empty one, or one that holds what is to go on.

Nothing here imports PyTorch, and nothing writes: a mistake is told before anything is there to be cleaned away.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

FORMAT = "2"  # "1" had no checksums
READABLE = ("1", FORMAT)
BLANK = "0" * 64
SEAL = re.compile(rb'"checksum": ?"([0-9a-f]{64})"')
PIECE = 2**20  # bytes that are read at once
MOST = 2**30  # bytes of a text that is read whole


class DamagedFile(ValueError):
    """A file that does not hold what was written; the message says which, and what to do."""


def open_regular(path: Path, mode: str) -> IO[bytes]:
    """Open a file that is no symbolic link, so that nothing outside the run's folder is read or written."""
    try:
        return open(path, mode, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666))
    except OSError as error:
        if error.errno == errno.ELOOP:
            refuse_links(path.parent, [path.name])
        raise


def refuse_links(folder: Path, names: Iterator[str] | list[str]) -> None:
    """Refuse symbolic links, pipes and devices in the place of a run's files."""
    for name in names:
        path = folder / name
        try:
            kind = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            what = f"a symbolic link to {os.readlink(path)}" if stat.S_ISLNK(kind) else "no ordinary file"
            raise ValueError(f"{path} is {what}: a run is read from and written to its own folder only. If it is "
                             "yours, copy the folder with its links resolved (cp -rL) and give the copy")  # fmt: skip


def read_regular(path: Path) -> bytes:
    """All bytes of a text of a run."""
    with open_regular(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST:
            raise DamagedFile(f"{path} has {size:,} bytes, more than any run writes: it is not of this program")
        return file.read()


def sealed(data: bytes) -> bytes:
    """`data` with its checksum in the place of the blank one that it holds."""
    place = data.rindex(b'"' + BLANK.encode() + b'"') + 1
    return data[:place] + checksum(data).encode() + data[place + len(BLANK) :]


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def checksum_of(path: Path, length: int | None = None) -> str:
    """The checksum of a file, or of its first bytes."""
    with open_regular(path, "rb") as file:
        return _sum(file, length)


def _sum(file: IO[bytes], length: int | None = None, before: bytes = b"") -> str:
    found, left = hashlib.sha256(before), length
    while piece := file.read(PIECE if left is None else min(PIECE, left)):
        found.update(piece)
        left = None if left is None else left - len(piece)
    return found.hexdigest()


# --- texts -------------------------------------------------------------------------------------------------------
def seal_json(value: dict[str, Any]) -> bytes:
    """A JSON object that holds its format first and its checksum last."""
    value = {"format": FORMAT, **value, "checksum": BLANK}
    return sealed((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def open_json(path: Path) -> dict[str, Any]:
    """What `seal_json` was given; a file from before checksums is taken as it is."""
    data = read_regular(path)
    found = [*SEAL.finditer(data)]
    if found and not _agrees(data, found[-1]):
        raise damaged(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is no JSON ({error}); {ADVICE}") from None
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} holds a {type(value).__name__} where an object is expected; {ADVICE}")
    return check_format(path, value, bool(found), value.get("format", "1"))


def check_format(path: Path, value: dict[str, Any], has_checksum: bool, told: Any) -> dict[str, Any]:
    """`value` without its format and checksum; formats of a later posterity are refused."""
    if told not in READABLE:
        raise ValueError(f"{path} has format {told!r}; this version of posterity reads {' and '.join(READABLE)}: read "
                         "it with the posterity that wrote it (run.json says which)")  # fmt: skip
    if has_checksum != (told == FORMAT):
        raise damaged(path)
    return {name: each for name, each in value.items() if name not in ("format", "checksum")}


# --- tensors -----------------------------------------------------------------------------------------------------
def check_tensors(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file whose bytes are those that were written."""
    with open_regular(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > size - 8:
            raise DamagedFile(f"{path} has {size:,} bytes and says that its first {length:,} are a table of contents: "
                              f"it was cut off or damaged; {ADVICE}")  # fmt: skip
        head += file.read(length)
        found = SEAL.search(head)
        if found and _sum(file, before=_blanked(head, found)) != found[1].decode():
            raise damaged(path)
    try:
        meta = json.loads(head[8:])["__metadata__"]
        return {str(name): str(each) for name, each in check_format(path, meta, bool(found), meta["format"]).items()}
    except (LookupError, TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError):
        raise damaged(path) from None


def _agrees(data: bytes, found: re.Match[bytes]) -> bool:
    return checksum(_blanked(data, found)) == found[1].decode()


def _blanked(data: bytes, found: re.Match[bytes]) -> bytes:
    return data[: found.start(1)] + BLANK.encode() + data[found.end(1) :]


ADVICE = "put a whole copy of it back, or begin again in another folder"


def damaged(path: Path) -> DamagedFile:
    return DamagedFile(f"{path} is not as it was written: its checksum does not agree (a damaged disk, a torn copy, or "
                       f"an edit); {ADVICE}")  # fmt: skip


RUN_MARKS = ("config.toml", "lock")  # a run; and what it takes first, should a kill come before the configuration
COMPARISON_MARKS = ("comparison.json", "comparison.json.part")


def check_out(out: Path, comparison: bool = False) -> None:
    """Refuse a file, and a folder with other things in it: a run's files do not belong among them."""
    check_folder(out)
    if not out.exists():
        return
    if any((out / mark).exists() for mark in (COMPARISON_MARKS if comparison else RUN_MARKS)):
        return  # whoever begins or goes on there says what is wrong with it, if anything
    others = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    if comparison and any(out.glob("*/seed-*/config.toml")):
        return  # runs of a comparison whose plan is gone: each is looked at by itself
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        what = "comparison" if comparison else "run"
        raise ValueError(f"{out} holds other files ({', '.join(others[:3])}{more}) and no {what}: give an empty or a "
                         "new folder; nothing was written")  # fmt: skip


def check_folder(out: Path) -> None:
    """Refuse what is no folder, and cannot be made one."""
    if not out.exists():
        above = next(parent for parent in out.absolute().parents if parent.exists())
        if not above.is_dir():
            raise ValueError(f"{out} cannot be made, because {above} is a file: give another folder")
    elif not out.is_dir():
        raise ValueError(f"{out} is a file, and a folder is needed to write to: give another one")


def new_folder(name: str) -> Path:
    """`runs/name`, or `runs/name-2` and so on if that exists."""
    safe = "".join(c if c.isalnum() or c in "+-_." else "-" for c in name)
    for number in range(1, 10_000):
        path = Path("runs") / (safe if number == 1 else f"{safe}-{number}")
        if not path.exists():
            return path
    raise ValueError("there are 9,999 folders of this name under runs/; give --out")
