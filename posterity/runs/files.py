"""Files of a run: written whole or not at all, sealed with a checksum, locked, and verified when they are read.

A whole file is written beside its place, forced to disk and moved over it. A sealed file holds its own SHA-256,
computed while 64 zeros stood in its place: one file, one move, no second file that could be left behind. SHA-256
because processors compute it (1 GB/s on a slow core, where BLAKE2 reaches a third of that) and because a CRC would also
agree with some edits.

Nothing here imports PyTorch: a mistake about where to write is told before anything else happens.
"""

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

FORMAT = "2"
BLANK = "0" * 64
SEAL = re.compile(rb'"checksum": ?"([0-9a-f]{64})"')
MOST = 2**30  # bytes of a text that is read whole
LOCK = "lock"
ADVICE = "put a whole copy of it back, or begin again in another folder"


class DamagedFile(ValueError):
    """A file that does not hold what was written; the message says which, and what to do."""


def damaged(path: Path) -> DamagedFile:
    return DamagedFile(f"{path} is not as it was written: its checksum does not agree (a damaged disk, a torn copy, or "
                       f"an edit); {ADVICE}")  # fmt: skip


# --- opening
def open_regular(path: Path, mode: str, rights: int = 0o666) -> IO[bytes]:
    """Open a file that is no symbolic link, so that nothing outside the run's folder is read or written."""
    try:
        return open(path, mode, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), rights))
    except OSError as error:
        if error.errno == errno.ELOOP:
            refuse_links(path.parent, [path.name])
        raise


def refuse_links(folder: Path, names: Iterable[str]) -> None:
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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuse a second process on the same run; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        yield
        return
    with open_regular(folder / LOCK, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} is being written by another process; wait for it or stop it") from None
        yield


# --- writing
def write_atomic(path: Path, data: bytes, rights: int = 0o666) -> None:
    """All of `data` at `path`, or what was there before; also after a power cut, and never through a link."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # of a process that died while it wrote
        with open_regular(part, "xb", rights) as file:
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


def clean(value: Any) -> Any:
    """`value` as JSON allows it: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def append_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> int:
    """Append JSON lines, force them to disk, and return the file's length."""
    with open_regular(path, "ab") as file:
        file.write("".join(json.dumps(clean(line)) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_lines(path: Path, length: int | None = None) -> list[dict[str, Any]]:
    """The JSON objects of a file, or of its first bytes."""
    data = read_regular(path) if path.exists() or length is None else b""
    try:
        found = [json.loads(line) for line in data[:length].decode().splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} holds a line that is no JSON object ({error}); {ADVICE}") from None
    if wrong := next((line for line in found if not isinstance(line, dict)), None):
        raise DamagedFile(f"{path} holds a line that is no JSON object ({wrong!r:.40}); {ADVICE}")
    return found


# --- checksums
def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def checksum_of(path: Path) -> str:
    with open_regular(path, "rb") as file:
        return _sum(file)


def _sum(file: Any, before: bytes = b"") -> str:
    return hashlib.file_digest(file, lambda: hashlib.sha256(before)).hexdigest()


def sealed(data: bytes) -> bytes:
    """`data` with its checksum in the place of the blank one that it holds."""
    place = data.rindex(b'"' + BLANK.encode() + b'"') + 1
    return data[:place] + checksum(data).encode() + data[place + len(BLANK) :]


def _blanked(data: bytes, found: re.Match[bytes]) -> bytes:
    return data[: found.start(1)] + BLANK.encode() + data[found.end(1) :]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object that holds its format first and its checksum last."""
    value = {"format": FORMAT, **clean(value), "checksum": BLANK}
    write_atomic(path, sealed((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()))


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` was given."""
    data = read_regular(path)
    found = [*SEAL.finditer(data)]
    if found and checksum(_blanked(data, found[-1])) != found[-1][1].decode():
        raise damaged(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is no JSON ({error}); {ADVICE}") from None
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} holds a {type(value).__name__} where an object is expected; {ADVICE}")
    return _unsealed(path, value, bool(found))


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
        if found and _sum(file, _blanked(head, found)) != found[1].decode():
            raise damaged(path)
    try:
        meta = _unsealed(path, json.loads(head[8:])["__metadata__"], bool(found))
    except (LookupError, TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError):
        raise damaged(path) from None
    return {str(name): str(each) for name, each in meta.items()}


def _unsealed(path: Path, value: dict[str, Any], has_checksum: bool) -> dict[str, Any]:
    """`value` without its format and checksum; another format is refused."""
    if (told := value.get("format", FORMAT)) != FORMAT:
        raise ValueError(f"{path} has format {told!r}; this version of posterity reads {FORMAT}: read it with the "
                         "posterity that wrote it (run.json says which)")  # fmt: skip
    if not has_checksum:
        raise damaged(path)
    return {name: each for name, each in value.items() if name not in ("format", "checksum")}


# --- where to write
RUN_MARKS = ("config.toml", LOCK)  # a run; and what it takes first, should a kill come before the configuration
COMPARISON_MARKS = ("comparison.json", "comparison.json.part")


def check_out(out: Path, comparison: bool = False) -> None:
    """Refuse a file, and a folder with other things in it: a run's files do not belong among them."""
    check_folder(out)
    if not out.exists():
        return
    if any((out / mark).exists() for mark in (COMPARISON_MARKS if comparison else RUN_MARKS)):
        return  # whoever begins or goes on there says what is wrong with it, if anything
    if comparison and any(out.glob("*/seed-*/config.toml")):
        return  # runs of a comparison whose plan is gone: each is looked at by itself
    if others := sorted(path.name for path in out.iterdir() if not path.name.startswith(".")):
        what = "comparison" if comparison else "run"
        raise ValueError(f"{out} holds other files ({', '.join(others[:3])}{', …' * (len(others) > 3)}) and no {what}: "
                         "give an empty or a new folder; nothing was written")  # fmt: skip


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
    return next(path for n in count(1) if not (path := Path("runs") / (safe if n == 1 else f"{safe}-{n}")).exists())
