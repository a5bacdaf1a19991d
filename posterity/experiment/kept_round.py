"""A round of a run as its members were scored, kept so that its models can be delivered later.

    kept-000012.safetensors        the State that members and newcomers met, who has a record
    kept-000012-0000.safetensors   their records, in pieces that fit into memory

The pieces are written first: where the first file is, all of them are. A kept round is never changed; `chosen.py` says
which rounds are kept, `delivery.py` what is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_bytes, tree_cat, tree_map, tree_rows
from posterity.engine.store import Store
from posterity.experiment import integrity, run_folder
from posterity.experiment.integrity import DamagedFile

PIECE = 2**28  # bytes of records that are written, or read, at once
PREFIX = "kept-"
PARTS = (("kept", ""), ("kept", "-*"), ("models", ""))  # what a folder may hold of one round


class ReadableRecords(Protocol):
    """Where personal records are read; a `Store` is one."""

    known: Tensor

    def read(self, clients: Tensor) -> Tree: ...


@dataclass
class Records:
    """Personal records of an earlier round, only read. `fetch` gives them by their place among those that exist."""

    known: Tensor  # (clients,) bool, on the host
    fetch: Callable[[Tensor], Tree]
    device: torch.device
    ready: bool = True  # to be read

    def expect_like(self, rows: Tree) -> None:
        """Their shape is known."""

    def read(self, clients: Tensor) -> Tree:
        """A stack of the records of `clients`, who all have one."""
        place = self.known.cumsum(0) - 1
        return tree_map(lambda leaf: leaf.to(self.device), self.fetch(place[clients.cpu()]))


@dataclass(frozen=True)
class Kept:
    """A round at the evaluation point of its method: `state` and `records` are those that the members were met with.

    A method that is scored right after training was met before the round was combined; newcomers meet what it became.
    """

    round: int
    state: Tree
    records: ReadableRecords
    late: Tree  # the State that newcomers meet

    def save(self, folder: Path) -> None:
        """Write it, the file that says that all is there at last."""
        each = save_records(folder, self.round, self.records)
        self.save_state(folder, each)

    def save_state(self, folder: Path, each: int) -> None:
        """The file beside its records, of which there are `each` in a piece."""
        trees = {"state": self.state, "known": {"clients": self.records.known}}
        if self.late is not self.state:
            trees["late"] = self.late
        run_folder.save_checkpoint(folder, trees, {"round": self.round, "each": each}, file_of(self.round))


def file_of(round: int) -> str:
    return f"{PREFIX}{round:06d}.safetensors"


def piece_of(round: int, number: int) -> str:
    return f"{PREFIX}{round:06d}-{number:04d}.safetensors"


def copied(store: Store, device: torch.device) -> Records:
    """The records of now, in memory of the host."""
    known, who = store.known.clone(), torch.nonzero(store.known)[:, 0]
    rows = tree_map(lambda leaf: leaf.cpu().clone(), store.read(who.to(device))) if len(who) else ()
    return Records(known, lambda places: tree_rows(rows, places), device)


def save_records(folder: Path, round: int, records: ReadableRecords) -> int:
    """Write all records piece by piece; how many are in a piece."""
    who = torch.nonzero(records.known)[:, 0]
    size = tree_bytes(records.read(who[:1])) if len(who) else 0
    if not size:  # nobody has a record, or there is nothing in it
        return 1
    each = max(1, PIECE // size)
    for number, some in enumerate(torch.split(who, each)):
        facts = {"round": round, "piece": number}
        run_folder.save_checkpoint(folder, {"personal": records.read(some)}, facts, piece_of(round, number))
    return each


def read_records(folder: Path, round: int, known: Tensor, each: int, like: Tree, device: torch.device) -> Records:
    """Records that `save_records` wrote, in the shape of `like`, a stack of one; a piece is read when it is needed."""

    @lru_cache(maxsize=1)
    def piece(number: int) -> Tree:
        leaves, _ = run_folder.read_saved(folder / piece_of(round, number))
        here = len(next(iter(leaves.values()))) if leaves else each
        table = tree_map(lambda leaf: leaf.cpu().expand(here, *leaf.shape[1:]), like)
        return run_folder.restore(table, leaves, "personal")

    def fetch(places: Tensor) -> Tree:
        if not tree_bytes(like):
            return like
        numbers = places // each
        order = torch.argsort(numbers, stable=True)  # piece by piece
        present = sorted(set(numbers.tolist()))
        found = tree_cat([tree_rows(piece(number), places[numbers == number] % each) for number in present])
        return tree_rows(found, torch.argsort(order))

    return Records(known, fetch, device)


def read_kept(folder: Path, round: int, state: Tree, like: Callable[[], Tree], device: torch.device) -> Kept | None:
    """A round that was kept in a run's folder, in the shape of `state`; None if it was not."""
    path = folder / file_of(round)
    if not path.exists():
        return None
    leaves, facts = run_folder.read_saved(path)
    placed: dict[str, Any] = {name: leaf.to(device) for name, leaf in leaves.items()}
    known = leaves["known/clients"]
    before = run_folder.restore(state, placed, "state")
    late = run_folder.restore(state, placed, "late") if any(n.startswith("late/") for n in leaves) else before
    records = read_records(folder, round, known, facts["each"], like() if bool(known.any()) else (), device)
    return Kept(round, before, records, late)


def names_in(folder: Path, rounds: set[int]) -> list[str]:
    """The files of a folder that models of these rounds are delivered from."""
    names = ["inputs", *(f"{kind}-{round:06d}{piece}" for round in rounds for kind, piece in PARTS)]
    return sorted(path.name for name in names for path in folder.glob(f"{name}.safetensors"))


def check_delivered(folder: Path, rounds: set[int], known: Iterable[str]) -> None:
    """Refuse a run's folder in which a file that will be delivered from is missing or not as it was written.

    They are read when a model is asked for, which may be long after a run that could still be begun again has gone on.
    Of other rounds there may be files that a kill left; they are never read.
    """
    for name in known:
        if not (folder / name).exists():
            raise DamagedFile(f"{folder / name} is missing, and the run has written it; {integrity.ADVICE}")
    for name in names_in(folder, rounds):
        integrity.check_tensors(folder / name)


def rounds_in(folder: Path) -> set[int]:
    """The rounds of which a folder holds any file."""
    return {int(path.name[len(PREFIX) :][:6]) for path in folder.glob(f"{PREFIX}[0-9]*.safetensors")}


def remove(folder: Path, round: int) -> None:
    """A kept round that no rule wants; the file that says it is whole goes first."""
    (folder / file_of(round)).unlink(missing_ok=True)
    for path in folder.glob(f"{PREFIX}{round:06d}-*.safetensors"):
        path.unlink()
