"""A federation: one pool of samples, and which client owns which rows of it; and what may be asked of one.

Nothing is copied per client and nothing is padded: `x` and `y` are flat, and a `Part` lists the rows of every
client one after the other with offsets between them. `data/assemble.py` makes a `Federation` from a pool and a
`FederationSpec`. One that somebody else put together is checked first (`check_federation`); values of rows that no part
names, and labels of public rows, may be anything: nobody reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.data.pool import DataError, as_tensors, check_features, check_lengths, check_targets
from posterity.data.preprocess import Preprocessing

if TYPE_CHECKING:
    from posterity.data.partition import Partition

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
        columns = ("x", "y", "train", "validation", "test", "common", "public")
        moved = {n: v.to(device) for n in columns if (v := getattr(self, n)) is not None}
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


KINDS = {"train": "training", "validation": "validation", "test": "test"}
INDICES = (torch.int64, torch.int32)  # other whole numbers are masks, or no index at all


def check_federation(federation: Federation) -> Federation:
    """Refuse a federation whose clients, rows, labels or values cannot be used; rows with two owners are noted."""
    if not isinstance(federation, Federation):
        kind = type(federation).__name__
        raise DataError(f"federation is of type {kind}; expected a posterity.Federation; a dataset goes into dataset=")
    if federation.absent:  # there are no rows to look at
        return federation
    whose = f"federation {federation.name!r}"
    federation = as_tensors(federation, ("x", "y", "common", "public"), whose)
    check_lengths(federation, ("x",), whose)
    _check_clients(federation, whose)
    parts = {name: getattr(federation, name).rows for name in KINDS} | {"common": federation.common}
    for name, rows in (*parts.items(), ("public", federation.public)):
        if rows is not None:
            _check_rows(rows, name, federation, whose)
    if not int(federation.train.sizes[: federation.members].sum()):
        raise DataError(f"{whose}: none of its {federation.members} members has a training row; expected some")
    _check_apart(federation, whose)
    for rows in parts.values():  # labels of public rows may be anything
        if rows is not None:
            check_targets(federation.y, federation.task, federation.classes, whose, rows)
    used = _mask([*parts.values(), federation.public], len(federation.y))
    check_features(federation.x, whose, used=used)
    notes = tuple(note for note in _shared(federation) if note not in federation.notes)
    return replace(federation, notes=federation.notes + notes) if notes else federation


def _check_clients(federation: Federation, whose: str) -> None:
    """Names that differ, members among them, and offsets that divide the rows of each part among the clients."""
    names, members = federation.names, federation.members
    for name in KINDS:
        offsets, rows = getattr(federation, name).host, getattr(federation, name).rows
        if (count := len(offsets) - 1) != len(names):
            given = f"{len(names)} names and {name} has the rows of {count} clients"
            raise DataError(f"{whose}: {given}; expected every client in every part, if with an empty list")
        if int(offsets[0]) or int(offsets[-1]) != len(rows) or bool((offsets.diff() < 0).any()):
            given = f"the offsets of {name} go from {int(offsets[0])} to {int(offsets[-1])} and it has {len(rows)} rows"
            raise DataError(f"{whose}: {given}; expected them to rise from 0 to that; make it by Part.of")
    for k, name in enumerate(names):
        if (first := names.index(name)) < k:
            raise DataError(f"{whose}: clients {first} and {k} are called {name!r}; expected names that differ")
    if not 1 <= members <= len(names):
        given = f"members is {members} and there are {len(names)} clients"
        raise DataError(f"{whose}: {given}; expected 1 to {len(names)}: the first so many train, others are newcomers")


def _check_rows(rows: Tensor, name: str, federation: Federation, whose: str) -> None:
    if rows.dim() != 1 or rows.dtype not in INDICES:
        given = f"{name} has rows of type {rows.dtype} in the shape {tuple(rows.shape)}"
        raise DataError(f"{whose}: {given}; expected row numbers of type torch.int64; convert them (also of no rows)")
    size = len(federation.y)
    outside = rows[(rows < 0) | (rows >= size)]
    if len(outside):
        row = int(outside[0])
        given = f"{name} names row {row} and there are {size}, 0 to {size - 1}"
        raise DataError(f"{whose}: {given}; expected rows of x and y; mend the part")


def _check_apart(federation: Federation, whose: str) -> None:
    """Refuse rows that stand in two parts, of one client or of two."""
    where = {name: _mask([getattr(federation, name).rows], len(federation.y)) for name in KINDS}
    for one, other in combinations(KINDS, 2):
        if not len(both := torch.nonzero(where[one] & where[other])[:, 0]):
            continue
        given = f"{len(both)} rows are in {one} and in {other} (the first is row {int(both[0])})"
        raise DataError(f"{whose}: {given}; expected every row in one part, or scores say nothing; divide them")


def _mask(groups: list[Tensor | None], size: int) -> Tensor:
    """Which rows are among those named."""
    here = torch.zeros(size, dtype=torch.bool)
    for rows in groups:
        if rows is not None:
            here[rows.cpu()] = True
    return here


def _shared(federation: Federation) -> Iterator[str]:
    """Rows that several clients have in one part: one test set for everybody is no mistake, but a reader must know."""
    for name, kind in KINDS.items():
        twice = torch.nonzero(torch.bincount(getattr(federation, name).rows) > 1)[:, 0]
        if len(twice):
            given = f"{len(twice)} {kind} rows stand more than once in {name} (the first is row {int(twice[0])})"
            yield f"{given}: clients share them, or one has them twice"
