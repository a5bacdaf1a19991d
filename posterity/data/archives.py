"""Files of somebody else's, read under limits: .npz, .gz, and official archives, alike from a folder, a ZIP or a tar.

A few kilobytes can claim to be terabytes. Nothing is allocated before it is known what a file says it holds, whether
its own length agrees, and whether that is within `most_bytes`: `EXPANDS` times the file, and always `ROOM`. Arrays that
are stored as they are (`numpy.savez`) never expand, so they may be as large as the disk. Links, pipes and devices are
refused; nothing is written to disk.
"""

import gzip
import io
import lzma
import math
import os
import re
import stat
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from posterity.data.pool import DataError

Array = NDArray[Any]
Wanted = Callable[[str], bool]
Members = Iterator[tuple[str, bytes]]
ROOM, EXPANDS = 4 * 2**30, 20
TARS = (".tar", ".tar.gz", ".tgz")
BROKEN = (  # what reading a damaged or hostile file raises
    ValueError, TypeError, OSError, ArithmeticError, EOFError, RuntimeError, MemoryError, LookupError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, wave.Error,
)  # fmt: skip


def check_file(path: Path, expected: str, inside: Path | None = None) -> None:
    """Refuse what is no ordinary file, before it is opened: a pipe would wait for ever, a device never ends.

    With `inside`, also a link that leads out of that folder.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise DataError(f"{path}: {why}; expected {expected}; check the path") from None
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: is a folder, a pipe or a device; expected {expected}; remove it or name another")
    real = os.path.realpath(path)
    if inside is not None and not Path(real).is_relative_to(os.path.realpath(inside)):
        raise DataError(f"{path}: is a link to {real}, outside of {inside}; expected {expected} inside; copy it")


def list_folder(path: Path) -> list[Path]:
    """What a folder holds, by name, without what is hidden."""
    try:
        return sorted(p for p in path.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a folder that can be read; mend its rights") from None


@contextmanager
def reading(what: object, expected: str) -> Iterator[None]:
    """Errors of a damaged or hostile file become a sentence."""
    try:
        yield
    except DataError:
        raise
    except BROKEN as error:
        why = str(error)
        if not why or isinstance(error, LookupError):
            why = f"{type(error).__name__}: {error}"
        raise DataError(f"{what}: cannot be read ({why}); expected {expected}") from None


def demand(holds: bool, given: str) -> None:
    """Inside of `reading`: refuse contents that do not fit, of which `given` tells."""
    if not holds:
        raise ValueError(given)


def most_bytes(path: Path) -> int:
    """How much a file may expand to."""
    return max(ROOM, EXPANDS * path.stat().st_size)


def check_size(path: Path, size: int) -> None:
    """Refuse what would expand, or has expanded, beyond the limit of its file."""
    if size > (most := most_bytes(path)):
        given = f"{path}: {path.stat().st_size:,} bytes that expand to {size:,} or more"
        raise DataError(f"{given}; expected at most {most:,}; store arrays as they are (numpy.savez)")


def read_file(path: Path) -> bytes:
    """The bytes of an ordinary file."""
    check_file(path, "a file")
    with reading(path, "a file of the dataset; mend its rights"):
        return path.read_bytes()


def read_npz(path: Path, *needed: str) -> dict[str, Array]:
    """All arrays of an .npz file, among them those `needed`."""
    check_file(path, "an .npz file")
    with (
        reading(path, "an .npz of plain arrays (no objects, no pickles), whole; copy it again, or use numpy.savez"),
        zipfile.ZipFile(path) as stored,
    ):
        members = [m for m in stored.infolist() if not m.is_dir()]
        check_size(path, sum(m.file_size for m in members))
        found = {m.filename.removesuffix(".npy"): _read_member(stored, m) for m in members}
    check_arrays(path, found, needed)
    return found


def check_arrays(path: Path, found: Collection[str], needed: Iterable[str]) -> None:
    """Refuse a file of arrays that lacks some of those `needed`."""
    if missing := [name for name in needed if name not in found]:
        held = ", ".join(found) or "none"
        raise DataError(f"{path}: arrays {held}; expected also {', '.join(missing)}; is it another file of this name?")


def _read_member(stored: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array, once its header is seen to agree with what the archive says."""
    name = member.filename
    with stored.open(member) as file:
        if not name.endswith(".npy"):
            raise ValueError(f"it holds {name!r}, which is no array")
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"an array in the format {version}")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, kind = read(file)
        claimed, present = math.prod(shape) * kind.itemsize, member.file_size - file.tell()
    if kind.hasobject:
        raise ValueError(f"{name!r} holds objects")
    if min(shape, default=0) < 0 or claimed != present:
        raise ValueError(f"{name!r} claims {claimed:,} bytes in the shape {shape} and has {present:,}")
    with stored.open(member) as file:
        found: Array = npy.read_array(file, allow_pickle=False)
        file.read(1)  # the end: here the checksum is compared
    return found


def unpack_gzip(data: bytes, name: str) -> bytes:
    """What bytes packed by gzip hold, of a file or of a member of an archive; at most `ROOM`."""
    with reading(name, "a whole .gz file; fetch it again"), gzip.GzipFile(fileobj=io.BytesIO(data)) as stored:
        found = stored.read(ROOM + 1)
    if len(found) > ROOM:
        raise DataError(f"{name}: expands beyond {ROOM:,} bytes; expected less; fetch it again")
    return found


def unpack_xz(data: bytes, size: int) -> bytes:
    """Exactly `size` bytes out of xz, or a ValueError."""
    found = lzma.LZMADecompressor().decompress(data, size + 1)
    if len(found) != size:
        raise ValueError(f"{len(found)} bytes or more instead of {size}")
    return found


def read_members(path: Path, wanted: Wanted) -> dict[str, bytes]:
    """The files whose name, relative to the folder or archive, is wanted, in the order of their names."""
    return dict(sorted(walk_members(path, wanted)))


def read_named(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """The files of these names, whatever folder of the archive they are in."""
    found = walk_members(path, lambda member: PurePosixPath(member).name in names)
    stored = {PurePosixPath(member).name: data for member, data in found}
    if missing := [name for name in names if name not in stored]:
        raise DataError(f"{path}: has no {', '.join(missing)}; expected {', '.join(names)}; fetch the archive again")
    return stored


def walk_matching(path: Path, form: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str, bytes]]:
    """The files whose own name is of this form: what the form found, the place of the file, and its bytes."""
    for member, data in walk_members(path, lambda member: form.fullmatch(PurePosixPath(member).name) is not None):
        if match := form.fullmatch(PurePosixPath(member).name):
            yield match, f"{path}: {member}", data


def walk_members(path: Path, wanted: Wanted) -> Members:
    """The wanted files one by one, in the order in which they are met: never more than one is held."""
    if path.is_dir():
        yield from _from_folder(path, wanted)
        return
    check_file(path, "an archive")
    with reading(path, "the archive as it is published, complete; fetch it again"):
        yield from (_from_tar if path.name.endswith(TARS) else _from_zip)(path, wanted)


def _from_folder(path: Path, wanted: Wanted) -> Members:
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in files:
            file = Path(folder, name)
            inner = file.relative_to(path).as_posix()
            if wanted(inner):
                check_file(file, "a file of the dataset", path)
                yield inner, read_file(file)


def _from_zip(path: Path, wanted: Wanted) -> Members:
    total = 0
    with zipfile.ZipFile(path) as stored:
        for member in stored.infolist():
            name = PurePosixPath(member.filename).as_posix()
            if member.is_dir() or not wanted(name):
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            total += _counted(path, name, kind in (0, stat.S_IFREG), total, member.file_size)
            yield name, stored.read(member)


def _from_tar(path: Path, wanted: Wanted) -> Members:
    total = 0
    opened: Callable[[Path, str], Any] = gzip.open if path.name.endswith("gz") else open
    with opened(path, "rb") as source, tarfile.open(fileobj=_Limited(source, path), mode="r|") as stored:
        for member in stored:
            name = PurePosixPath(member.name).as_posix()
            if member.isdir() or not wanted(name):
                continue
            total += _counted(path, name, member.isreg() and not member.issparse(), total, member.size)
            stream = stored.extractfile(member)
            assert stream is not None
            data = stream.read()
            if len(data) != member.size:
                raise EOFError(f"{name} ends after {len(data)} of {member.size} bytes")
            yield name, data


class _Limited(io.RawIOBase):
    """A file that is refused once it has given more bytes than it may expand to."""

    def __init__(self, source: IO[bytes], path: Path) -> None:
        self.source, self.path, self.given, self.most = source, path, 0, most_bytes(path)

    def read(self, size: int = -1) -> bytes:
        data = self.source.read(min(size, self.most + 1) if size >= 0 else self.most + 1)
        self.given += len(data)
        check_size(self.path, self.given)
        return data


def _counted(path: Path, name: str, ordinary: bool, total: int, size: int) -> int:
    """The size of a member, once it is seen to be a file, and not too large beside those before."""
    if not ordinary:
        given = f"{path}: {name!r} is a link, a device or a file with holes"
        raise DataError(f"{given}; expected an ordinary file; fetch the archive again")
    check_size(path, total + size)
    return size
