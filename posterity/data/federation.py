"""A federation: one pool of samples, and which client owns which rows of it; and what may be asked of one.

Nothing is copied per client and nothing is padded: `x` and `y` are flat, and a `Part` lists the rows of every
client one after the other with offsets between them. `data/clients.py` makes a `Federation` from a `data/pool.py` and a
`FederationSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posterity.core.network import Task
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
