"""Rows of bytes in a file that may be larger than memory, and records as such rows.

Rows that were never written take no space (the file is sparse). Rows are read through a map and written through the
file: a disk that is full is an error then, not a signal.

The rows that are read at once lie anywhere in the file. The system is told so, or it would read megabytes around each
of them, and it is told which rows come next, so that it fetches them all at once. Such advice changes times, never
bytes.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posterity.core.tree import Tree, tree_filled, tree_named
from posterity.engine.journal import Bytes, Index

COPY = 2**22  # bytes of rows that are copied or compared at once


class RowFile:
    """One row of `width` bytes for each client; the file is made if it is not there."""

    def __init__(self, path: Path, clients: int, width: int, only_read: bool = False) -> None:
        self.width, self.size = width, clients * width
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(self.size)
        elif path.stat().st_size != self.size:
            raise ValueError(
                f"{path} holds {path.stat().st_size} bytes, but {clients} clients x {width} "
                "bytes are expected: it belongs to another method, model or federation; use another --out folder"
            )
        self.descriptor = os.open(path, (os.O_RDONLY if only_read else os.O_RDWR) | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self.descriptor)
        self.map: np.memmap[tuple[int, int], np.dtype[np.uint8]] = np.memmap(
            path, np.uint8, "r", shape=(clients, width)
        )
        _advise(self.map, "MADV_RANDOM", [(0, self.size)])

    def read(self, clients: Index) -> Bytes:
        return np.asarray(self.map[clients])

    def read_pieces(self, clients: Index) -> Iterator[tuple[Index, Bytes]]:
        """Rows of some clients, a few megabytes at a time."""
        most = max(1, COPY // self.width)
        for some in (clients[i : i + most] for i in range(0, len(clients), most)):
            yield some, self.read(some)

    def prefetch(self, clients: Index) -> None:
        """Ask the system for the rows of `clients` (ascending); it fetches them while others work."""
        _advise(self.map, "MADV_WILLNEED", spans(clients, self.width))

    def write(self, clients: Index, rows: Bytes) -> None:
        """Write rows to their places, those of neighbours at once."""
        order = np.argsort(clients, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(clients[order]) != 1))
        for some in np.split(order, begins[1:]):
            write_at(self.descriptor, int(clients[some[0]]) * self.width, rows[some])

    def sync(self) -> None:
        """Force all rows to disk."""
        os.fsync(self.descriptor)

    def written(self) -> Index:
        """Clients whose rows take space on the disk."""
        place, found = 0, [np.zeros(0, np.int64)]
        while place < self.size and hasattr(os, "SEEK_DATA"):
            try:
                place = os.lseek(self.descriptor, place, os.SEEK_DATA)
                end = min(self.size, os.lseek(self.descriptor, place, os.SEEK_HOLE))
            except OSError:  # nothing but a hole follows
                break
            found.append(np.arange(place // self.width, -(-end // self.width)))
            place = end
        return np.unique(np.concatenate(found))


def write_at(descriptor: int, place: int, rows: Bytes) -> None:
    """All bytes of `rows` at a place of a file, or an error."""
    left = memoryview(rows.tobytes())
    os.lseek(descriptor, place, os.SEEK_SET)
    while left:
        left = left[os.write(descriptor, left) :]


def spans(rows: Index, width: int) -> list[tuple[int, int]]:
    """First byte and length of the pages under some rows (ascending); pages that follow each other are one span."""
    if not len(rows):
        return []
    first, last = rows * width // mmap.PAGESIZE, ((rows + 1) * width - 1) // mmap.PAGESIZE  # page of each row's ends
    begins = np.flatnonzero(np.append(True, first[1:] > last[:-1] + 1))
    ends = np.append(begins[1:], len(rows)) - 1
    start, length = first[begins] * mmap.PAGESIZE, (last[ends] - first[begins] + 1) * mmap.PAGESIZE
    return list(zip(start.tolist(), length.tolist(), strict=True))


def _advise(rows: Bytes, advice: str, where: list[tuple[int, int]]) -> None:
    """Tell the system how pages will be used, if it has such a call (Windows has not)."""
    pages: Any = rows.base
    if not hasattr(pages, "madvise"):
        return
    with suppress(OSError):  # a system that does not listen reads as it always did
        for first, length in where:
            pages.madvise(getattr(mmap, advice), first, length)


def row_width(records: Tree) -> int:
    """Bytes of one record of a stack."""
    return sum(leaf[0].numel() * leaf.element_size() for _, leaf in tree_named(records))


def pack_rows(records: Tree) -> Bytes:
    """A stack of records as one row of bytes per client."""
    flat = [
        leaf.detach().cpu().contiguous().reshape(len(leaf), -1).view(torch.uint8) for _, leaf in tree_named(records)
    ]
    return torch.cat(flat, 1).numpy()


def unpack_rows(rows: Bytes, like: Tree) -> Tree:
    """The stack of records that `pack_rows` made the rows of, on the devices of records that look `like` them."""
    named, place = {}, 0
    for name, leaf in tree_named(like):
        size = leaf[0].numel() * leaf.element_size()
        flat = torch.from_numpy(rows[:, place : place + size].copy())
        some = flat.view(leaf.dtype) if size else flat.to(leaf.dtype)  # no bytes have no other type
        named[name] = some.reshape(len(rows), *leaf.shape[1:]).to(leaf.device)
        place += size
    return tree_filled(like, named)


__all__ = ["RowFile", "pack_rows", "row_width", "spans", "unpack_rows", "write_at"]
