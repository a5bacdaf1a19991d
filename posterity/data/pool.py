"""A pool: what a dataset or a user's file offers before anybody decides which client owns what.

`data/registry.py` reads pools, `data/clients.py` makes federations of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.core.text import plain

Scaling = Literal["none", "client", "all"]
"""Who fits mean and sd of each feature: nobody, every client on its own training rows, all members together."""


class DataError(ValueError):
    """Data, or a request about data, that cannot be used: says what was given, what was expected and what to do.

    Names of files, columns and clients stand in such sentences; none of them commands the terminal.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(plain(sentence, keep="\n"))


def tell_option(name: str, value: str | int) -> str:
    """How an option of the data is given, for sentences: on the command line, to `posterity.run`, to `data.load`."""
    run, load = json.dumps({f"data.{name}": value}), json.dumps({name: value})
    return f"--set data.{name}={value} (in Python set={run}, to data.load options={load})"


@dataclass(frozen=True)
class Pool:
    """Samples, and what their source knows about them.

    A source that decides its own clients says so in `owner`; rows with owner -1 belong to no client. Standardisation
    (`scale`) and spoilt labels (`outlier`) are only asked for here: they need the training rows, so they happen after
    the split.
    """

    name: str
    x: Tensor  # (pool, *shape) float32
    y: Tensor  # (pool,) int64 labels, or float32 targets
    classes: int  # 0 for regression
    class_names: tuple[str, ...] = ()
    task: Task = "classification"
    owner: Tensor | None = None  # (pool,) int64, index into owner_names
    owner_names: tuple[str, ...] = ()
    group: Tensor | None = None  # (pool,) int64: rows of one group (patient) stay in one part
    official_test: Tensor | None = None  # (pool,) bool
    domain: Tensor | None = None  # (pool,) int64: which dataset of a mix a row comes from
    common: Tensor | None = None  # rows of a test set that belongs to no client
    scale: Scaling = "none"
    outlier: int | None = None  # the owner whose training labels are shuffled, an experiment on robustness
    may_repeat: bool = False  # rows of the user, perhaps twice there: look for training rows among those held out
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # names of the features, where they have names
    published: int = 0  # rows of the complete dataset, where a part of it may be all that is stored
    pictures: bool = False  # x was made of bytes: 0 … 255 became -1 … 1

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Pool:
        """The pool of these rows only."""
        columns = ("x", "y", "owner", "group", "official_test", "domain")
        kept = {name: column[rows] for name in columns if (column := getattr(self, name)) is not None}
        if self.common is not None:
            place = torch.full((len(self),), -1)
            place[rows] = torch.arange(len(rows))
            moved = place[self.common]
            kept["common"] = moved[moved >= 0]
        return replace(self, **kept)

    def noting(self, *notes: str) -> Pool:
        """The pool with further remarks for the report."""
        return replace(self, notes=self.notes + notes)
