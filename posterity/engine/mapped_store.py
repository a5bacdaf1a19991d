"""Personal records in a file that may be larger than memory (`row_file.py`), safe from a kill at any moment.

Rows of clients that were never met do not exist. The file changes through an undo journal: before a row is overwritten
for the first time since the last commit, its old bytes are appended to the journal and forced to disk. After a kill,
`Mapped` puts the old rows back, so what it holds is exactly what the last checkpoint knew. The journal of the
checkpoint before is kept, too: should the last be damaged, two journals lead back to the one before. The checkpoint
holds a checksum of every row; all are compared when a run is taken up.
"""

from __future__ import annotations

import os
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_like, tree_map
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
from posterity.engine.row_file import RowFile, pack_rows, row_width, unpack_rows, write_at
from posterity.engine.store import NOTHING, Like


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
        clients = clients.cpu()
        self.prefetch(clients)
        return unpack_rows(self.file.read(clients.numpy()), self.template)

    def write(self, clients: Tensor, rows: Tree) -> None:
        self._open(rows)
        if self.file is not None:
            index = clients.cpu().numpy()
            self._remember(index)
            self.file.write(index, pack_rows(tree_like(rows, self.template)))  # in the order of names that the file has
        self.known[clients.cpu()] = True

    def prefetch(self, clients: Tensor) -> None:
        """Ask the system for the rows of `clients`, as far as there are any."""
        if self.file is not None:
            index = clients.cpu()
            self.file.prefetch(index[self.known[index]].sort().values.numpy())

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
        if row_width(record) and not self.path.exists():
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
                write_at(file.fileno(), client * journal.width, row)
                count += 1
            os.fsync(file.fileno())
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
        elif (found.number, found.width, found.sums) != (self.number, self.width, SUM):
            start_journal(self.journal, self.number, self.width)

    def _verify(self, told: Mapping[str, Any] | None) -> None:
        """Compare every row with its checksum; of a folder from before checksums they are computed."""
        if self.file is None:
            return
        known, wrong = np.flatnonzero(self.known.numpy()), []
        if told is not None:
            self.sums = self._sums_of(told)
        for some, rows in self.file.read_pieces(known):
            found = row_sums(rows)
            if told is None:
                self.sums[some] = found
            wrong += some[(self.sums[some] != found).any(1)].tolist()
        for some, rows in self.file.read_pieces(np.setdiff1d(self.file.written(), known)):
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

    def _remember(self, index: Index) -> None:
        """Write rows to the journal that it does not have yet, before others take their places."""
        assert self.file is not None
        new = index[~self.saved[index]]
        if len(new):
            append_rows(self.journal, new, (rows for _, rows in self.file.read_pieces(new)))
            self.saved[new] = True


def _check(journal: Journal, clients: int) -> None:
    """Read all entries of a journal, for their mistakes."""
    for _ in entries(journal, clients):
        pass


__all__ = ["Mapped"]
