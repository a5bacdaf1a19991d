"""Personal records, one row per client: in memory, or in a file that may be larger than memory.

Rows of clients that were never met do not exist (the file is sparse). The file changes through an undo journal: before
a row is overwritten for the first time since the last commit, its old bytes are appended to the journal and forced to
disk. After a kill, `Mapped` puts the old rows back, so what it holds is exactly what the last checkpoint knew. The
journal of the checkpoint before is kept, too: should the last be damaged, two journals lead back to the one before.
The checkpoint holds a checksum of every row; all are compared when a run is taken up.

Rows are read through a map and written through the file: a disk that is full is an error then, not a signal.

A cohort's rows lie anywhere in the file. The system is told so, or it would read megabytes around each of them, and it
is told which rows come next, so that it fetches them all at once. Such advice changes times, never bytes.
"""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_filled, tree_like, tree_map, tree_named, tree_rows
from posterity.engine.distributed import Processes
from posterity.engine.journal import (
    SUM,
    Bytes,
    Index,
    Journal,
    append_rows,
    damaged,
    entries,
    read_journal,
    row_sums,
    start_journal,
)  # fmt: skip

Like = Callable[[], Tree]  # gives a stack of records of the right shape
NOTHING: Mapping[str, Any] = {}
COPY = 2**22  # bytes of rows that are copied or compared at once


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

    def facts(self) -> dict[str, Any]:
        """What the checkpoint must say about records that lie elsewhere."""
        ...

    def commit(self, number: int) -> None:
        """The checkpoint of that number is on disk."""
        ...

    def recover(
        self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like,
        facts: Mapping[str, Any] = NOTHING,
    ) -> None:  # fmt: skip
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

    def facts(self) -> dict[str, Any]:
        return {}

    def commit(self, number: int) -> None:
        """The checkpoint holds everything."""

    def recover(
        self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like,
        facts: Mapping[str, Any] = NOTHING,
    ) -> None:  # fmt: skip
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
    """Rows of fixed width in `rows.bin`, journals in `undo.bin` and, of the checkpoint before, `undo.previous.bin`."""

    def __init__(self, folder: Path, clients: int, number: int = 0, only_read: bool = False) -> None:
        if not only_read:
            folder.mkdir(parents=True, exist_ok=True)
        self.path, self.journal, self.older = (folder / n for n in ("rows.bin", "undo.bin", "undo.previous.bin"))
        self.known = torch.zeros(clients, dtype=torch.bool)
        self.template: Tree = None
        self.width = 0
        self.saved = np.zeros(clients, bool)  # whose old row is in the journal
        self.sums = np.zeros((clients, SUM), np.uint8)  # checksums of the rows, as of `prepare`
        self.map: np.memmap[tuple[int, int], np.dtype[np.uint8]] | None = None
        self.file: int | None = None  # descriptor of the rows' file
        self.number, self.only_read = number, only_read  # number of the checkpoint that the journal belongs to

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
        if self.map is not None:
            index = clients.cpu().numpy()
            self._remember(index)
            self._put(index, _packed(tree_like(rows, self.template)))  # in the order of names that the file has
        self.known[clients.cpu()] = True

    def prefetch(self, clients: Tensor) -> None:
        """Ask the system for the rows of `clients`, which will be read; it fetches them while others work."""
        if self.map is None:
            return
        index = clients.cpu()
        _advise(self.map, "MADV_WILLNEED", spans(index[self.known[index]].sort().values.numpy(), self.width))

    def prepare(self) -> Tree:
        """Force all rows to disk, before the checkpoint that will own them is written."""
        if self.file is not None and not self.only_read:
            os.fsync(self.file)
            for some, rows in self._pieces(np.flatnonzero(self.saved)):
                self.sums[some] = row_sums(rows)
        return None

    def facts(self) -> dict[str, Any]:
        return {"rows": {"width": self.width, "sums": b64encode(self.sums.tobytes()).decode()}}

    def commit(self, number: int) -> None:
        """Start a new journal for the checkpoint of that number, which is on disk now; the old one is kept."""
        self.number, self.saved = number, np.zeros(len(self.known), bool)
        with suppress(FileNotFoundError):
            os.replace(self.journal, self.older)
        start_journal(self.journal, number, self.width)

    def recover(
        self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like,
        facts: Mapping[str, Any] = NOTHING,
    ) -> None:  # fmt: skip
        self.number = number
        told = facts.get("rows")
        if not self.only_read:
            self.undo(verified=told is not None)
        if known is None:
            return
        self.known = known.cpu()
        if not bool(known.any()):
            return
        record = like()
        if sum(leaf[0].numel() for _, leaf in tree_named(record)) and not self.path.exists():
            raise ValueError(f"{self.path} is missing, but the checkpoint knows the records of {int(known.sum())} "
                             "clients that it held: put the folder 'personal' of the same run back, or begin again in "
                             "another folder")  # fmt: skip
        self._open(record)
        self._verify(told)

    def gather(self, processes: Processes, like: Like) -> None:
        """Records on disk belong to one process."""

    def undo(self, verified: bool = True) -> int:
        """Undo what was written after the checkpoint `number`; returns how many rows were put back.

        A journal newer than the checkpoint leads back to it only if that of the checkpoint itself is there, and only if
        the rows are `verified` afterwards.
        """
        found = {j.number: j for j in (self._older(), read_journal(self.journal)) if j is not None and j.width}
        back = sorted((n for n in found if n >= self.number), reverse=True)
        if back and (back != [*range(back[0], self.number - 1, -1)] or (len(back) > 1 and not verified)):
            raise ValueError(f"{self.journal.parent} is newer than the checkpoint beside it (checkpoint {back[0]} "
                             f"against {self.number}): the folder was copied while the run wrote, or files of two "
                             "copies were mixed. Put all files of one copy back, or begin again in another folder"
                             )  # fmt: skip
        if not back or not self.path.exists():
            return 0  # the journal of an older checkpoint: the newer one already owns these rows
        count = sum(self._put_back(found[number]) for number in back)
        start_journal(self.journal, self.number, found[back[0]].width)  # what follows starts a clean list
        if len(back) > 1:
            self.older.unlink()
        return count

    def _put_back(self, journal: Journal) -> int:
        """The rows of a journal, back in the file; how many."""
        if self.path.stat().st_size != len(self.known) * journal.width:
            raise damaged(self.path)
        count = 0
        with self.path.open("r+b", buffering=0) as file:
            for client, row in entries(journal, len(self.known)):
                _write(file.fileno(), client * journal.width, row)
                count += 1
            os.fsync(file.fileno())
        return count

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
        self.file = os.open(self.path, (os.O_RDONLY if self.only_read else os.O_RDWR) | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self.file)
        self.map = np.memmap(self.path, np.uint8, "r", shape=(len(self.known), self.width))
        _advise(self.map, "MADV_RANDOM", [(0, size)])
        if self.only_read:
            return
        found = read_journal(self.journal)
        if found is None or found.number < self.number:
            self.commit(self.number)
        elif (found.number, found.width, found.sums) != (self.number, self.width, SUM):
            start_journal(self.journal, self.number, self.width)

    def _verify(self, told: Mapping[str, Any] | None) -> None:
        """Compare every row with its checksum; of a folder from before checksums they are computed."""
        if self.map is None:
            return
        known, wrong = np.flatnonzero(self.known.numpy()), []
        if told is not None:
            self.sums = self._sums_of(told)
        for some, rows in self._pieces(known):
            found = row_sums(rows)
            if told is None:
                self.sums[some] = found
            wrong += some[(self.sums[some] != found).any(1)].tolist()
        for some, rows in self._pieces(np.setdiff1d(self._written(), known)):
            wrong += some[rows.any(1)].tolist()  # nobody has met them
        if wrong:
            raise ValueError(f"{self.path}: the records of {len(wrong)} clients (the first: client {wrong[0]}) are not "
                             "those that the checkpoint knows (a damaged disk, a torn copy, or files of two copies): "
                             "put a whole copy of the run's folder back, or begin again in another folder")  # fmt: skip
        self._older()  # what is not needed today should be whole, too
        if (journal := read_journal(self.journal)) is not None:
            _check(journal, len(self.known))

    def _sums_of(self, told: Any) -> Bytes:
        """The checksums that a checkpoint holds."""
        try:
            return np.frombuffer(b64decode(told["sums"]), np.uint8).reshape(len(self.known), SUM).copy()
        except (LookupError, TypeError, ValueError):
            raise damaged(self.path) from None

    def _older(self) -> Journal | None:
        """The journal of the checkpoint before, if it is there and whole."""
        try:
            journal = read_journal(self.older)
            if journal is not None:
                _check(journal, len(self.known))
        except ValueError:
            warnings.warn(f"{self.older} is damaged; it is needed only if the last checkpoint is, too", stacklevel=2)
            return None
        return journal

    def _written(self) -> Index:
        """Clients whose rows take space on the disk."""
        assert self.file is not None
        size, place, found = len(self.known) * self.width, 0, [np.zeros(0, np.int64)]
        while place < size and hasattr(os, "SEEK_DATA"):
            try:
                place = os.lseek(self.file, place, os.SEEK_DATA)
                end = min(size, os.lseek(self.file, place, os.SEEK_HOLE))
            except OSError:  # nothing but a hole follows
                break
            found.append(np.arange(place // self.width, -(-end // self.width)))
            place = end
        return np.unique(np.concatenate(found))

    def _pieces(self, index: Index) -> Iterator[tuple[Index, Bytes]]:
        """Rows of some clients, a few megabytes at a time."""
        assert self.map is not None
        most = max(1, COPY // self.width)
        for some in (index[i : i + most] for i in range(0, len(index), most)):
            yield some, np.asarray(self.map[some])

    def _remember(self, index: Index) -> None:
        new = index[~self.saved[index]]
        if len(new):
            append_rows(self.journal, new, (rows for _, rows in self._pieces(new)))
            self.saved[new] = True

    def _put(self, index: Index, rows: Bytes) -> None:
        """Write rows to their places, those of neighbours at once."""
        assert self.file is not None
        order = np.argsort(index, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(index[order]) != 1))
        for some in np.split(order, begins[1:]):
            _write(self.file, int(index[some[0]]) * self.width, rows[some])

    def _unpacked(self, rows: Bytes) -> Tree:
        named, place = {}, 0
        for name, leaf in tree_named(self.template):
            size = leaf[0].numel() * leaf.element_size()
            flat = torch.from_numpy(rows[:, place : place + size].copy())
            named[name] = flat.view(leaf.dtype).reshape(len(rows), *leaf.shape[1:]).to(leaf.device)
            place += size
        return tree_filled(self.template, named)


def _check(journal: Journal, clients: int) -> None:
    """Read all entries of a journal, for their mistakes."""
    for _ in entries(journal, clients):
        pass


def _write(file: int, place: int, rows: Bytes) -> None:
    """All bytes of `rows` at a place of a file, or an error."""
    left = memoryview(rows.tobytes())
    os.lseek(file, place, os.SEEK_SET)
    while left:
        left = left[os.write(file, left) :]


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
