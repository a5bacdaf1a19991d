"""A federation: one pool of samples, and which client owns which rows of it; and what may be asked of one.

Nothing is copied per client and nothing is padded: `x` and `y` are flat, and a `Part` lists the rows of every
client one after the other with offsets between them. `data/assemble.py` makes a `Federation` from a pool and a
`FederationSpec`.

What is looked at before a federation that somebody else put together is used: names, parts, rows, labels, values.

`data/registry.py` checks what a function of the user returned, `experiment/setup.py` what was handed in from Python.
Values of rows that no part names, and labels of public rows, may be anything: nobody reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.data.pool import DataError, as_tensors, check_features, check_kind
from posterity.data.preprocess import Preprocessing

if TYPE_CHECKING:
    from posterity.data.partition import Partition


KINDS = {"train": "training", "validation": "validation", "test": "test"}
INDICES = (torch.int64, torch.int32)  # other whole numbers are masks, or no index at all


def check_federation(federation: Federation) -> Federation:
    """Refuse a federation whose clients, rows, labels or values cannot be used; rows with two owners are noted."""
    if not isinstance(federation, Federation):
        raise DataError(f"federation is of type {type(federation).__name__}; expected a posterity.Federation; the name "
                        "or the path of a dataset goes into dataset=")  # fmt: skip
    if federation.absent:  # there are no rows to look at
        return federation
    whose = f"federation {federation.name!r}"
    federation = as_tensors(federation, ("x", "y", "common", "public"), whose)
    parts = {name: getattr(federation, name) for name in KINDS}
    _check_shapes(federation, whose)
    _check_names(federation, whose)
    for name, part in parts.items():
        _check_part(part, name, federation, whose)
    for name in ("common", "public"):
        if (rows := getattr(federation, name)) is not None:
            _check_rows(rows, name, federation, whose)
    _check_members(federation, whose)
    _check_apart(federation, parts, whose)
    _check_labels(federation, whose)
    used = _mask([*(part.rows for part in parts.values()), federation.common, federation.public], len(federation.y))
    check_features(federation.x, whose, used, lambda row: _owner(federation, row))
    notes = [note for note in _shared(federation) if note not in federation.notes]
    return replace(federation, notes=(*federation.notes, *notes)) if notes else federation


def _check_shapes(federation: Federation, whose: str) -> None:
    x, y = federation.x, federation.y
    if y.dim() != 1:
        raise DataError(f"{whose}: y has the shape {tuple(y.shape)}; expected (rows,); flatten it")
    if x.dim() < 1 or len(x) != len(y):
        raise DataError(f"{whose}: x has the shape {tuple(x.shape)} and y {len(y)} rows; expected as many of both; "
                        "mend one of them")  # fmt: skip


def _check_names(federation: Federation, whose: str) -> None:
    names = federation.names
    for part in KINDS:
        if (count := len(getattr(federation, part).offsets) - 1) != len(names):
            raise DataError(
                f"{whose}: {len(names)} names and {part} has the rows of {count} clients; expected a name for each "
                "client, and every client in every part; who has no rows there has an empty list"
            )
    if len(set(names)) < len(names):
        name = next(name for name, times in Counter(names).items() if times > 1)
        numbers = " and ".join(str(k) for k, other in enumerate(names) if other == name)
        raise DataError(f"{whose}: clients {numbers} are called {name!r}; expected names that differ; rename one")


def _check_part(part: Part, name: str, federation: Federation, whose: str) -> None:
    """Offsets that divide the rows among the clients, and rows that there are."""
    offsets = part.host
    if int(offsets[0]) or int(offsets[-1]) != len(part.rows) or bool((offsets.diff() < 0).any()):
        raise DataError(f"{whose}: the offsets of {name} go from {int(offsets[0])} to {int(offsets[-1])} and it has "
                        f"{len(part.rows)} rows; expected them to rise from 0 to that; make it by Part.of")  # fmt: skip
    _check_rows(part.rows, name, federation, whose)


def _check_rows(rows: Tensor, name: str, federation: Federation, whose: str) -> None:
    if rows.dim() != 1 or rows.dtype not in INDICES:
        raise DataError(
            f"{whose}: {name} has rows of type {rows.dtype} in the shape {tuple(rows.shape)}; expected row "
            "numbers of type torch.int64; convert them (of one without any, too: torch.zeros(0, dtype=torch.int64))"
        )
    size = len(federation.y)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < size:
        row = int(rows.max()) if int(rows.max()) >= size else int(rows.min())
        raise DataError(f"{whose}: {name} names row {row}{_owner(federation, row)} and there are {size}, 0 to "
                        f"{size - 1}; expected rows of x and y; mend the part")  # fmt: skip


def _check_members(federation: Federation, whose: str) -> None:
    members, clients = federation.members, federation.clients
    if not 1 <= members <= clients:
        raise DataError(f"{whose}: members is {members} and there are {clients} clients; expected 1 to {clients}: the "
                        "first so many train, the others are newcomers; change it")  # fmt: skip
    if not int(federation.train.sizes[:members].sum()):
        raise DataError(f"{whose}: none of its {members} members has a training row; expected some; mend train")


def _check_apart(federation: Federation, parts: dict[str, Part], whose: str) -> None:
    """Refuse rows that stand in two parts, of one client or of two."""
    where: dict[str, Tensor] = {}
    for name, part in parts.items():
        here = _mask([part.rows], len(federation.y))
        for other, there in where.items():
            if len(both := torch.nonzero(here & there)[:, 0]):
                row = int(both[0])
                numbers = sorted({k for each in (parts[other], part) if (k := _client(each, row)) is not None})
                owners = " and ".join(repr(federation.names[k]) for k in numbers)
                raise DataError(
                    f"{whose}: {len(both)} rows are in {other} and in {name} (the first is row {row}, of {owners}); "
                    "expected every row in one part, or scores are of rows that were trained on; divide them"
                )
        where[name] = here


def _check_labels(federation: Federation, whose: str) -> None:
    """Labels, or targets, of all rows but public ones."""
    y = federation.y
    check_kind(y, federation.task, whose)
    for name in (*KINDS, "common"):
        part = getattr(federation, name)
        rows = part.rows if isinstance(part, Part) else part
        if rows is None or not len(rows):
            continue
        mine = y[rows]
        if federation.task == "classification":
            wrong, wanted = (mine < 0) | (mine >= federation.classes), f"labels from 0 to {federation.classes - 1}"
        else:
            wrong, wanted = ~mine.isfinite(), "numbers"
        if bool(wrong.any()):
            row = int(rows[torch.nonzero(wrong)[0, 0]])
            raise DataError(f"{whose}: y of row {row}{_owner(federation, row)} is {y[row].item()}; expected {wanted}; "
                            "mend y, or classes")  # fmt: skip


def _mask(groups: list[Tensor | None], size: int) -> Tensor:
    """Which rows are among those named."""
    here = torch.zeros(size, dtype=torch.bool)
    for rows in groups:
        if rows is not None:
            here[rows.cpu()] = True
    return here


def _client(part: Part, row: int) -> int | None:
    """The number of the first client that owns a row of this part."""
    places = torch.nonzero(part.rows == row)[:, 0]
    return int(part.owners()[places[0]]) if len(places) else None


def _owner(federation: Federation, row: int) -> str:
    """In words, whose row it is; nothing where it is nobody's."""
    for name, kind in KINDS.items():
        if (client := _client(getattr(federation, name), row)) is not None:
            return f" (a {kind} row of {federation.names[client]!r})"
    return ""


def _shared(federation: Federation) -> list[str]:
    """Rows that several clients have in one part: one test set for everybody is no mistake, but a reader must know."""
    notes = []
    for name, kind in KINDS.items():
        rows = getattr(federation, name).rows
        if len(rows) and int((times := torch.bincount(rows, minlength=1)).max()) > 1:
            twice = torch.nonzero(times > 1)[:, 0]
            notes.append(f"{len(twice)} {kind} rows stand more than once in {name} (the first is row {int(twice[0])}): "
                         "clients share them, or one has them twice")  # fmt: skip
    return notes


Options = Mapping[str, str | int | float]


@dataclass(frozen=True)
class FederationSpec:
    """What is asked for, as typed: a dataset, and how its rows become those of clients."""

    dataset: str  # a name, a mix (a+b), package.module:function, or a path
    partition: str | None = None  # None: natural where the data have clients, else dirichlet:0.3
    clients: int | None = None  # None: the data's own, else 20
    split: str = "80/20"  # training / held out
    subset: str | int | float | None = None
    test_partition: str = "same"
    newcomers: str | int | float = 0
    public: str | float = 0
    seed: int = 0
    data_dir: str | Path | None = None
    target: str | None = None  # columns of your own table
    client_column: str | None = None
    group: str | None = None
    options: Options = field(default_factory=dict)  # of the dataset


@dataclass(frozen=True)
class Part:
    """Rows of the pool, client by client: client k owns `rows[offsets[k]:offsets[k + 1]]`."""

    rows: Tensor  # (N,) int64
    offsets: Tensor  # (clients + 1,) int64

    @staticmethod
    def of(groups: list[Tensor]) -> Part:
        """The part in which client k owns the rows `groups[k]`."""
        counts = torch.tensor([0, *(len(g) for g in groups)])
        return Part(torch.cat(groups) if groups else torch.zeros(0, dtype=torch.int64), counts.cumsum(0))

    @cached_property
    def host(self) -> Tensor:
        """The offsets on the host."""
        return self.offsets.cpu()

    @cached_property
    def sizes(self) -> Tensor:
        """Samples per client, on the host."""
        return self.host.diff()

    @cached_property
    def counts(self) -> Tensor:
        """Samples per client (clients,)."""
        return self.offsets.diff()

    def client(self, k: int) -> Tensor:
        """Rows of client k."""
        return self.rows[self.offsets[k] : self.offsets[k + 1]]

    def owners(self) -> Tensor:
        """The client of each entry of `rows` (N,)."""
        return torch.repeat_interleave(torch.arange(len(self.counts), device=self.rows.device), self.counts)

    def longer(self) -> Part:
        """The same part with one more client, who owns nothing."""
        return Part(self.rows, torch.cat((self.offsets, self.offsets[-1:])))

    def without_small(self, least: int) -> Part:
        """The same part, in which clients with fewer than `least` rows own nothing."""
        counts = torch.where(self.counts >= least, self.counts, 0)
        rows = self.rows[torch.repeat_interleave(self.counts >= least, self.counts)]
        return Part(rows, torch.cat((self.offsets[:1], counts.cumsum(0))))

    def to(self, device: torch.device | str) -> Part:
        return Part(self.rows.to(device), self.offsets.to(device))


@dataclass(frozen=True)
class Federation:
    """Clients 0 … members-1 take part in training; the rest are newcomers, met only when a model is scored."""

    name: str
    task: Task
    x: Tensor  # (pool, *shape) floating
    y: Tensor  # (pool,) int64 labels, or floating targets for regression
    classes: int  # 0 for regression
    train: Part  # every client's own training rows
    validation: Part  # first half of what is held out: chooses the round
    test: Part  # second half of what is held out: is reported
    members: int
    names: tuple[str, ...]  # one name per client
    class_names: tuple[str, ...] = ()
    common: Tensor | None = None  # rows of a test set that belongs to no client (FedNP)
    public: Tensor | None = None  # rows without labels that the server may use (FedBE)
    partition: Partition | None = None  # the rule that divided the rows; None for clients put together by hand
    notes: tuple[str, ...] = ()  # assumptions and warnings that a report must show
    preprocessing: Preprocessing = field(default=Preprocessing(), repr=False)  # how raw samples became those of x
    fingerprint: str = ""  # of the values before they were scaled
    absent: bool = False  # names and counts only, as a finished run's folder has them: there are no rows

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Federation:
        """The same federation on a device; floating tensors in `dtype`."""
        moved = {n: getattr(self, n).to(device) for n in ("x", "y", "train", "validation", "test")}
        moved |= {n: v.to(device) for n in ("common", "public") if (v := getattr(self, n)) is not None}
        if dtype is not None:
            moved |= {n: moved[n].to(dtype) for n in ("x", "y") if moved[n].is_floating_point()}
        return Federation(**{**self.__dict__, **moved})

    def histogram(self, part: Part) -> Tensor:
        """Samples of each class on each client (clients, classes)."""
        cell = part.owners() * self.classes + self.y[part.rows]
        return torch.bincount(cell, minlength=self.clients * self.classes).reshape(self.clients, self.classes)

    def seen(self, part: Part) -> Tensor:
        """The share of each client's rows whose class it has training rows of (clients,); nan for one without rows."""
        counts = self.histogram(part).to(torch.float64)
        return (counts * (self.histogram(self.train) > 0)).sum(1) / counts.sum(1)
