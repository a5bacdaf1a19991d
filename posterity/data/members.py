"""Files of an official distribution, read alike from a folder, a ZIP file or a tar archive; nothing is written to disk.

Links, pipes and devices, names that lead out of the archive, and what would expand beyond `most_bytes` are refused
(`data/archive.py` has the limits).
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from posterity.data.archive import BROKEN, check_file, check_size, most_bytes, told
from posterity.data.pool import DataError

Wanted = Callable[[str], bool]
Members = Iterator[tuple[str, bytes]]
TARS = (".tar", ".tar.gz", ".tgz")


def read_members(path: Path, wanted: Wanted) -> dict[str, bytes]:
    """The files whose name, relative to the folder or archive, is wanted, in the order of their names."""
    return dict(sorted(walk_members(path, wanted)))


def walk_members(path: Path, wanted: Wanted) -> Members:
    """The same files one by one, in the order in which they are met: never more than one is held."""
    if path.is_dir():
        yield from _from_folder(path, wanted)
        return
    check_file(path, "an archive")
    read = _from_tar if path.name.endswith(TARS) else _from_zip
    try:
        yield from read(path, wanted)
    except DataError:
        raise
    except (*BROKEN, tarfile.TarError) as error:
        raise DataError(
            f"{path}: cannot be read ({told(error)}); expected the archive as it is published, complete; fetch it again"
        ) from None


def _from_folder(path: Path, wanted: Wanted) -> Members:
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in files:
            file = Path(folder, name)
            inner = file.relative_to(path).as_posix()
            if wanted(inner):
                check_file(file, "a file of the dataset", path)
                yield inner, read_file(file)


def read_file(path: Path) -> bytes:
    """The bytes of an ordinary file."""
    check_file(path, "a file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({told(error)}); expected a file of the dataset; mend its rights"
        ) from None


def _from_zip(path: Path, wanted: Wanted) -> Members:
    total = 0
    with zipfile.ZipFile(path) as stored:
        for member in stored.infolist():
            name = _inner(path, member.filename)
            if member.is_dir() or not wanted(name):
                continue
            if (kind := stat.S_IFMT(member.external_attr >> 16)) and kind != stat.S_IFREG:
                _refuse(path, name)
            total += member.file_size
            check_size(path, total)
            yield name, stored.read(member)


def _from_tar(path: Path, wanted: Wanted) -> Members:
    total = 0
    opened: Callable[[Path, str], Any] = gzip.open if path.name.endswith("gz") else open
    with opened(path, "rb") as source, tarfile.open(fileobj=_Limited(source, path), mode="r|") as stored:
        for member in stored:
            name = _inner(path, member.name)
            if member.isdir() or not wanted(name):
                continue
            if not member.isreg() or member.issparse():
                _refuse(path, name)
            total += member.size
            check_size(path, total)
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


def _inner(path: Path, name: str) -> str:
    """The name inside an archive, once it is seen to stay there."""
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts:
        raise DataError(
            f"{path}: holds {name!r}, a name that leads out of it; expected the archive as it is published; fetch it "
            "again from its official source"
        )
    return place.as_posix()


def _refuse(path: Path, name: str) -> None:
    raise DataError(
        f"{path}: {name!r} is a link, a device or a file with holes; expected an ordinary file; fetch the archive "
        "again from its official source"
    )
