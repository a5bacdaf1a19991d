"""Personal records in a file that may be larger than memory, safe from a kill at any moment.

A row of bytes for each client lies in `rows.bin`. Rows that were never written take no space (the file is sparse).

The file changes through an undo journal: before a row is overwritten for the first time since the last commit, its old
bytes are appended to the journal and forced to disk. After a kill, `DiskStore` puts the old rows back, so what it holds
is exactly what the last checkpoint knew. The journal of the checkpoint before is kept, too: should the last be damaged,
two journals lead back to the one before. The checkpoint holds a checksum of every row; all are compared when a run is
taken up. A journal is

    head    number of the checkpoint, width of a row, a mark, checksum     8 bytes each
    entry   client (8 bytes), its old row (width bytes), checksum (8 bytes)
"""

import hashlib
import os
import warnings
import weakref
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_filled, tree_like, tree_map, tree_named
from posterity.engine.processes import Processes
from posterity.engine.store import Like, Store

Index = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
MARK = b"undo v2\n"
SUM = 8  # bytes of a row's checksum: what it guards against is chance
HEAD = 24 + SUM


@dataclass(frozen=True)
class Journal:
    path: Path
    number: int  # of the checkpoint whose rows it holds
    width: int


def row_sums(rows: Bytes) -> Bytes:
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
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except FileNotFoundError:
        return None
    if head[16:24] != MARK or head[24:] != hashlib.sha256(head[:24]).digest()[:SUM]:
        raise damaged(path)
    number, width = np.frombuffer(head[:16], np.int64).tolist()
    return Journal(path, number, width)


def entries(journal: Journal, clients: int) -> Iterator[tuple[int, Bytes]]:
    """Clients and their old rows (1, width). Half an entry at the end is of a row that was not touched yet."""
    if not journal.width:
        return
    with journal.path.open("rb") as file:
        size, length = os.fstat(file.fileno()).st_size, 8 + journal.width
        file.seek(HEAD)
        for left in reversed(range((size - HEAD) // (length + SUM))):
            raw = np.frombuffer(file.read(length + SUM), np.uint8).reshape(1, -1)
            told, found = raw[:, :length], raw[:, length:]
            client = int(told[0, :8].view(np.int64)[0])
            if not 0 <= client < clients or not np.array_equal(row_sums(told), found):
                if left:
                    raise damaged(journal.path)
                warnings.warn(f"the last entry of {journal.path} is damaged and left out", stacklevel=2)
                return
            yield client, told[:, 8:]


def damaged(path: Path, why: str = "is not as it was written (a damaged disk, a torn copy, or an edit)") -> ValueError:
    return ValueError(f"{path} {why}: put a whole copy of the run's folder back, or begin again in another folder")


class DiskStore(Store):
    """Rows of fixed width in `rows.bin`, journals in `undo.bin` and, of the checkpoint before, `undo.previous.bin`."""

    def __init__(self, folder: Path, clients: int, number: int = 0, only_read: bool = False) -> None:
        if not only_read:
            folder.mkdir(parents=True, exist_ok=True)
        self.path, self.journal, self.older = (folder / n for n in ("rows.bin", "undo.bin", "undo.previous.bin"))
        super().__init__(clients)
        self.template: Tree = None
        self.width = 0
        self.saved = np.zeros(clients, bool)  # whose old row is in the journal
        self.sums = np.zeros((clients, SUM), np.uint8)  # checksums of the rows, as of `prepare`
        self.file: RowFile | None = None  # none for a record without numbers, and before the first
        self.number, self.only_read = number, only_read  # number of the checkpoint that the journal belongs to

    @property
    def ready(self) -> bool:
        return self.template is not None

    def expect_like(self, rows: Tree) -> None:
        self._open(rows)

    def read(self, clients: Tensor) -> Tree:
        if self.file is None:
            return tree_map(lambda leaf: leaf[:1].expand(len(clients), *leaf.shape[1:]), self.template)
        return unpack_rows(self.file.read(clients.cpu().numpy()), self.template)

    def write(self, clients: Tensor, rows: Tree) -> None:
        self._open(rows)
        if self.file is not None:
            index = clients.cpu().numpy()
            self._remember(index)
            self.file.write(index, pack_rows(tree_like(rows, self.template)))  # in the order of names that the file has
        self.known[clients.cpu()] = True

    def prepare(self) -> Tree:
        """Force all rows to disk, before the checkpoint that will own them is written."""
        if self.file is not None and not self.only_read:
            self.file.sync()
            for some, rows in self.file.read_pieces(np.flatnonzero(self.saved)):
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
        self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like, facts: Mapping[str, Any]
    ) -> None:
        self.number = number
        if not self.only_read:
            self.undo()
        if known is None:
            return
        self.known = known.cpu()
        if not bool(known.any()):
            return
        record = like()
        if row_width(record) and not self.path.exists():
            raise damaged(self.path, f"is missing, but the checkpoint knows {int(known.sum())} records that it held")
        self._open(record)
        self._verify(facts.get("rows"))

    def gather(self, processes: Processes, like: Like) -> None:
        """Records on disk belong to one process."""

    def undo(self) -> int:
        """Undo what was written after the checkpoint `number`; returns how many rows were put back.

        A journal newer than the checkpoint leads back to it only if that of the checkpoint itself is there.
        """
        found = {j.number: j for j in (self._older(), read_journal(self.journal)) if j is not None and j.width}
        back = sorted((n for n in found if n >= self.number), reverse=True)
        if back and back != [*range(back[0], self.number - 1, -1)]:
            both = f"checkpoint {back[0]} against {self.number}"
            raise damaged(self.journal.parent, f"is newer than the checkpoint beside it ({both})")
        if not back or not self.path.exists():
            return 0  # the journal of an older checkpoint: the newer one already owns these rows
        count = sum(self._put_back(found[number]) for number in back)
        start_journal(self.journal, self.number, found[back[0]].width)  # what follows starts a clean list
        if len(back) > 1:
            self.older.unlink()
        return count

    def _put_back(self, journal: Journal) -> int:
        if self.path.stat().st_size != len(self.known) * journal.width:
            raise damaged(self.path)
        count, rows = 0, RowFile(self.path, len(self.known), journal.width)
        for client, row in entries(journal, len(self.known)):
            rows.write(np.array([client]), row)
            count += 1
        rows.sync()
        return count

    def _open(self, like: Tree) -> None:
        """Open the file as soon as a row has been seen and its width is known."""
        if self.template is not None:
            return
        self.template = like
        self.width = row_width(like)
        if not self.width:
            return
        self.file = RowFile(self.path, len(self.known), self.width, self.only_read)
        if self.only_read:
            return
        found = read_journal(self.journal)
        if found is None or found.number < self.number:
            self.commit(self.number)
        elif (found.number, found.width) != (self.number, self.width):
            start_journal(self.journal, self.number, self.width)

    def _verify(self, told: Any) -> None:
        """Compare every row with the checksum that the checkpoint holds of it."""
        if self.file is None:
            return
        try:
            sums = np.frombuffer(b64decode(told["sums"]), np.uint8)
            self.sums = sums.reshape(len(self.known), SUM).copy()
        except (LookupError, TypeError, ValueError):
            raise damaged(self.path) from None
        wrong = []
        for some, rows in self.file.read_pieces(np.flatnonzero(self.known.numpy())):
            wrong += some[(self.sums[some] != row_sums(rows)).any(1)].tolist()
        if wrong:
            those = f"{len(wrong)} records (the first: client {wrong[0]})"
            raise damaged(self.path, f"has {those} that are not those that the checkpoint knows")
        self._older()  # what is not needed today should be whole, too
        if (journal := read_journal(self.journal)) is not None:
            _check(journal, len(self.known))

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

    def _remember(self, index: Index) -> None:
        """Write rows to the journal that it does not have yet, before others take their places."""
        assert self.file is not None
        new = index[~self.saved[index]]
        if len(new):
            append_rows(self.journal, new, (rows for _, rows in self.file.read_pieces(new)))
            self.saved[new] = True


def _check(journal: Journal, clients: int) -> None:
    for _ in entries(journal, clients):
        pass


COPY = 2**22  # bytes of rows that are copied or compared at once


class RowFile:
    """One row of `width` bytes for each client; the file is made if it is not there."""

    def __init__(self, path: Path, clients: int, width: int, only_read: bool = False) -> None:
        self.path, self.width, self.size = path, width, clients * width
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(self.size)
        elif path.stat().st_size != self.size:
            raise ValueError(
                f"{path} has not {clients} clients x {width} bytes: it belongs to another method, model or federation; "
                "use another --out folder"
            )
        self.file = path.open("rb" if only_read else "r+b", buffering=0)
        weakref.finalize(self, self.file.close)

    def read(self, clients: Index) -> Bytes:
        found = []
        for client in clients.tolist():
            self.file.seek(client * self.width)
            found.append(self.file.read(self.width))
        rows = np.frombuffer(b"".join(found), np.uint8)
        if rows.size != len(clients) * self.width:
            raise damaged(self.path)
        return rows.reshape(len(clients), self.width)

    def read_pieces(self, clients: Index) -> Iterator[tuple[Index, Bytes]]:
        """Rows of some clients, a few megabytes at a time."""
        most = max(1, COPY // self.width)
        for some in (clients[i : i + most] for i in range(0, len(clients), most)):
            yield some, self.read(some)

    def write(self, clients: Index, rows: Bytes) -> None:
        for client, row in zip(clients.tolist(), rows, strict=True):
            self.file.seek(client * self.width)
            left = memoryview(row.tobytes())
            while left:  # a disk that is nearly full takes some
                left = left[self.file.write(left) :]

    def sync(self) -> None:
        os.fsync(self.file.fileno())


def row_width(records: Tree) -> int:
    return sum(leaf[0].numel() * leaf.element_size() for _, leaf in tree_named(records))


def pack_rows(records: Tree) -> Bytes:
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
