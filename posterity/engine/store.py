"""Personal records, one row per client: in memory, or in a file that may be larger than memory.

Rows of clients that were never met do not exist (the file is sparse). The file changes through an undo journal: before
a row is overwritten for the first time since the last commit, its old bytes are appended to the journal and forced to
disk. After a kill, `Mapped` puts the old rows back, so what it holds is exactly what the last checkpoint knew.

A cohort's rows lie anywhere in the file. The system is told so, or it would read megabytes around each of them, and it
is told which rows come next, so that it fetches them all at once. Such advice changes times, never bytes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_filled, tree_like, tree_map, tree_named, tree_rows
from posterity.engine.distributed import Processes

Index = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Like = Callable[[], Tree]  # gives a stack of records of the right shape
COPY = 2**22  # bytes of old rows that are copied to the journal at once


class Store(Protocol):
    """Where personal records live. Only clients that have a record are read; the others join first."""

    known: Tensor  # (clients,) bool, on the host: who has a record

    @property
    def ready(self) -> bool:
        """Whether the shape of a record is known, so that one can be read."""
        ...

    def expect_like(self, rows: Tree) -> None:
        """Records look like these rows."""
        ...

    def read(self, clients: Tensor) -> Tree:
        """A stack of the records of `clients`, who all have one."""
        ...

    def write(self, clients: Tensor, rows: Tree) -> None: ...

    def prefetch(self, clients: Tensor) -> None:
        """The records of `clients` will be read soon."""
        ...

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def prepare(self) -> Tree:
        """Make sure that nothing is lost, and return what the checkpoint must hold itself; None if nothing."""
        ...

    def commit(self, number: int) -> None:
        """The checkpoint of that number is on disk."""
        ...

    def recover(self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like) -> None:
        """Go back to the checkpoint of that number: what it says is known, and `restore` fills a table from it."""
        ...

    def gather(self, processes: Processes, like: Like) -> None:
        """Fetch the records that other processes hold, for the one that writes the checkpoint."""
        ...


class Memory:
    """All rows in one tensor per leaf, allocated at the first write."""

    def __init__(self, clients: int, device: torch.device | str = "cpu") -> None:
        self.known = torch.zeros(clients, dtype=torch.bool)
        self.device = torch.device(device)
        self.rows: Tree = None

    @property
    def ready(self) -> bool:
        return self.rows is not None

    def expect_like(self, rows: Tree) -> None:
        """The first rows that are written say it."""

    def read(self, clients: Tensor) -> Tree:
        return tree_rows(self.rows, clients)

    def write(self, clients: Tensor, rows: Tree) -> None:
        self.rows = self._table(rows) if self.rows is None else self.rows
        tree_map(lambda table, leaf: table.index_copy_(0, clients, leaf.to(table)), self.rows, rows)
        self.known[clients.cpu()] = True

    def prefetch(self, clients: Tensor) -> None:
        """They are here already."""

    def prepare(self) -> Tree:
        return self.rows

    def commit(self, number: int) -> None:
        """The checkpoint holds everything."""

    def recover(self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like) -> None:
        if known is None:
            return
        self.known = known.cpu()
        if bool(known.any()):
            self.rows = restore(self._table(like()))

    def gather(self, processes: Processes, like: Like) -> None:
        if processes.size == 1:
            return
        mine = processes.share(torch.nonzero(self.known)[:, 0].to(self.device))
        named = {} if self.rows is None else dict(tree_named(tree_rows(self.rows, mine)))
        for found in processes.collect({**named, "clients": mine})[1:]:
            clients = found.pop("clients")
            if found:
                self.rows = self._table(like()) if self.rows is None else self.rows
                self.write(clients, tree_filled(self.rows, found))

    def _table(self, rows: Tree) -> Tree:
        """Rows of zeros for all clients."""
        return tree_map(lambda leaf: leaf.new_zeros(len(self.known), *leaf.shape[1:]), rows)


class Mapped:
    """Rows of fixed width in `rows.bin`, journal in `undo.bin`; see the module's text for the rule."""

    def __init__(self, folder: Path, clients: int, number: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.journal = folder / "rows.bin", folder / "undo.bin"
        self.known = torch.zeros(clients, dtype=torch.bool)
        self.template: Tree = None
        self.width = 0
        self.saved = np.zeros(clients, bool)  # whose old row is in the journal
        self.map: np.memmap[tuple[int, int], np.dtype[np.uint8]] | None = None
        self.number = number  # of the checkpoint that the journal belongs to

    @property
    def ready(self) -> bool:
        return self.template is not None

    def expect_like(self, rows: Tree) -> None:
        self._open(rows)

    def read(self, clients: Tensor) -> Tree:
        if self.map is None:  # a record without numbers
            return tree_map(lambda leaf: leaf[:1].expand(len(clients), *leaf.shape[1:]), self.template)
        clients = clients.cpu()
        self.prefetch(clients)
        return self._unpacked(np.asarray(self.map[clients.numpy()]))

    def write(self, clients: Tensor, rows: Tree) -> None:
        self._open(rows)
        self.known[clients.cpu()] = True
        if self.map is None:
            return
        index = clients.cpu().numpy()
        self._remember(index)
        self.map[index] = _packed(tree_like(rows, self.template))  # in the order of names that the file has

    def prefetch(self, clients: Tensor) -> None:
        """Ask the system for the rows of `clients`, which will be read; it fetches them while others work."""
        if self.map is None:
            return
        index = clients.cpu()
        _advise(self.map, "MADV_WILLNEED", spans(index[self.known[index]].sort().values.numpy(), self.width))

    def prepare(self) -> Tree:
        """Force all rows to disk, before the checkpoint that will own them is written."""
        if self.map is not None:
            self.map.flush()
        return None

    def commit(self, number: int) -> None:
        """Start a new journal for the checkpoint of that number, which is on disk now."""
        self.number, self.saved = number, np.zeros(len(self.known), bool)
        fresh = self.journal.with_suffix(".tmp")
        fresh.write_bytes(np.array([number, self.width], np.int64).tobytes())
        os.replace(fresh, self.journal)

    def recover(self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like) -> None:
        self.number = number
        self.undo()
        if known is not None:
            self.known = known.cpu()

    def gather(self, processes: Processes, like: Like) -> None:
        """Records on disk belong to one process."""

    def undo(self) -> int:
        """Undo what was written after the last checkpoint; returns how many rows were put back."""
        if not self.journal.exists() or not self.path.exists():
            return 0
        raw = self.journal.read_bytes()
        number, width = np.frombuffer(raw[:16], np.int64)
        if number != self.number or not width:
            return 0  # the journal of an older checkpoint: the newer one already owns these rows
        entry = 8 + int(width)
        complete = (len(raw) - 16) // entry  # a half-written last entry belongs to a row that was not touched yet
        rows = np.memmap(self.path, np.uint8, "r+", shape=(len(self.known), int(width)))
        for i in range(complete):
            piece = raw[16 + i * entry : 16 + (i + 1) * entry]
            rows[int(np.frombuffer(piece[:8], np.int64)[0])] = np.frombuffer(piece[8:], np.uint8)
        rows.flush()
        os.truncate(self.journal, 16)  # the rows are back: what follows starts a clean list
        return complete

    def _open(self, like: Tree) -> None:
        """Map the file as soon as a row has been seen and its width is known."""
        if self.template is not None:
            return
        self.template = like
        self.width = sum(leaf[0].numel() * leaf.element_size() for _, leaf in tree_named(like))
        if not self.width:
            return
        size = len(self.known) * self.width
        if not self.path.exists():
            with self.path.open("wb") as file:
                file.truncate(size)  # sparse: rows of clients never met take no space
        elif self.path.stat().st_size != size:
            raise ValueError(
                f"{self.path} holds {self.path.stat().st_size} bytes, but {len(self.known)} clients x {self.width} "
                "bytes are expected: it belongs to another method, model or federation; use another --out folder"
            )
        self.map = np.memmap(self.path, np.uint8, "r+", shape=(len(self.known), self.width))
        _advise(self.map, "MADV_RANDOM", [(0, size)])
        if not self.journal.exists() or np.fromfile(self.journal, np.int64, 2).tolist() != [self.number, self.width]:
            self.commit(self.number)

    def _remember(self, index: Index) -> None:
        assert self.map is not None
        new, most = index[~self.saved[index]], max(1, COPY // self.width)
        if not len(new):
            return
        with self.journal.open("ab") as file:
            for some in (new[i : i + most] for i in range(0, len(new), most)):
                names = some.reshape(-1, 1).view(np.uint8)  # (some, 8)
                file.write(np.concatenate((names, self.map[some]), 1).tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.saved[new] = True

    def _unpacked(self, rows: Bytes) -> Tree:
        named, place = {}, 0
        for name, leaf in tree_named(self.template):
            size = leaf[0].numel() * leaf.element_size()
            flat = torch.from_numpy(rows[:, place : place + size].copy())
            named[name] = flat.view(leaf.dtype).reshape(len(rows), *leaf.shape[1:]).to(leaf.device)
            place += size
        return tree_filled(self.template, named)


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


def _packed(rows: Tree) -> Bytes:
    """A stack of records as one row of bytes per client."""
    flat = [leaf.detach().cpu().contiguous().reshape(len(leaf), -1).view(torch.uint8) for _, leaf in tree_named(rows)]
    return torch.cat(flat, 1).numpy()


__all__ = ["Mapped", "Memory", "Store", "spans"]
