"""The undo journal of records on disk (`mapped_store.py`): rows as they were at a checkpoint, each with its checksum.

    head    number of the checkpoint, width of a row, a mark, checksum     8 bytes each
    entry   client (8 bytes), its old row (width bytes), checksum (8 bytes)

Journals from before checksums have neither mark nor checksums.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Index = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
MARK = b"undo v2\n"
SUM = 8  # bytes of a row's checksum: what it guards against is chance


@dataclass(frozen=True)
class Journal:
    """The head of a journal's file."""

    path: Path
    number: int  # of the checkpoint whose rows it holds
    width: int
    begins: int  # where the entries begin
    sums: int  # bytes of an entry's checksum

    @property
    def entry(self) -> int:
        return 8 + self.width + self.sums


def row_sums(rows: Bytes) -> Bytes:
    """The checksum (n, 8) of each row."""
    found = b"".join(hashlib.sha256(row).digest()[:SUM] for row in np.ascontiguousarray(rows))
    return np.frombuffer(found, np.uint8).reshape(len(rows), SUM)


def start_journal(path: Path, number: int, width: int) -> None:
    """An empty journal, at once or not at all."""
    head = np.array([number, width], np.int64).tobytes() + MARK
    fresh = path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        file.write(head + hashlib.sha256(head).digest()[:SUM])
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    with suppress(OSError):  # not every system opens folders
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def append_rows(path: Path, clients: Index, rows: Iterator[Bytes]) -> None:
    """Old rows of `clients`, piece by piece, forced to disk."""
    with path.open("ab") as file:
        place = 0
        for some in rows:
            names = clients[place : place + len(some)].reshape(-1, 1).view(np.uint8)  # (some, 8)
            entries = np.concatenate((names, some), 1)
            file.write(np.concatenate((entries, row_sums(entries)), 1).tobytes())
            place += len(some)
        file.flush()
        os.fsync(file.fileno())


def read_journal(path: Path) -> Journal | None:
    """The head of a journal; None if there is no such file."""
    try:
        with path.open("rb") as file:
            head = file.read(24 + SUM)
    except FileNotFoundError:
        return None
    number, width = (int(n) for n in np.frombuffer(head[:16].ljust(16, b"\xff"), np.int64))
    marked = head[16:24] == MARK and head[24:] == hashlib.sha256(head[:24]).digest()[:SUM]
    if marked:
        return Journal(path, number, width, 24 + SUM, SUM)
    begun = int.from_bytes(head[16:24], "little") if len(head) >= 24 else 0  # the first client of an older journal
    if not (0 <= number < 2**40 and 0 <= width < 2**40 and begun < 2**40):
        raise damaged(path)
    return Journal(path, number, width, 16, 0)


def entries(journal: Journal, clients: int) -> Iterator[tuple[int, Bytes]]:
    """Clients and their old rows (1, width). Half an entry at the end is of a row that was not touched yet."""
    if not journal.width:
        return
    with journal.path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(journal.begins)
        for left in reversed(range((size - journal.begins) // journal.entry)):
            raw = np.frombuffer(file.read(journal.entry), np.uint8).reshape(1, -1)
            told, found = raw[:, : 8 + journal.width], raw[:, 8 + journal.width :]
            client = int(told[0, :8].view(np.int64)[0])
            if not 0 <= client < clients or (journal.sums and not np.array_equal(row_sums(told), found)):
                if left:
                    raise damaged(journal.path)
                warnings.warn(f"the last entry of {journal.path} is damaged; its row was not touched yet, or is found "
                              "to be wrong below", stacklevel=2)  # fmt: skip
                return
            yield client, told[:, 8:]


def damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is not as it was written (a damaged disk, a torn copy, or an edit): put a whole copy of "
                      "the run's folder back, or begin again in another folder")  # fmt: skip


__all__ = ["SUM", "Bytes", "Index", "Journal", "append_rows", "damaged", "entries", "read_journal", "row_sums",
           "start_journal"]  # fmt: skip
