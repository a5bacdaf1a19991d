"""A pool: what a dataset or a user's file offers before anybody decides which client owns what.

`data/registry.py` reads pools, `data/assemble.py` makes federations of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.settings.text import plain

T = TypeVar("T")  # a record of tensors
COLUMNS = ("x", "y", "owner", "group", "official_test", "common")
AT_ONCE = 2**24  # values that are looked at together
SHOWN = 12  # names in a sentence
LARGEST = torch.finfo(torch.float32).max

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
    common: Tensor | None = None  # rows of a test set that belongs to no client
    scale: Scaling = "none"
    outlier: int | None = None  # the owner whose training labels are shuffled, an experiment on robustness
    may_repeat: bool = False  # rows of the user, perhaps twice there: look for training rows among those held out
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # names of the features, where they have names
    pictures: bool = False  # x was made of bytes: 0 … 255 became -1 … 1

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Pool:
        """The pool of these rows only."""
        columns = ("x", "y", "owner", "group", "official_test")
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


def listed(names: Iterable[object], most: int = SHOWN) -> str:
    """The first of many names, for a sentence."""
    every = [plain(name) for name in names]
    return ", ".join(every[:most]) + (f", … ({len(every)} in all)" if len(every) > most else "")


def check_pool(pool: Pool, name: str) -> Pool:
    """Refuse a pool whose tensors do not fit together or whose values cannot be used."""
    whose = f"dataset {name!r}"
    pool = as_tensors(pool, COLUMNS, whose)
    check_lengths(pool, ("x", "owner", "group", "official_test"), whose)
    check_targets(pool.y, pool.task, pool.classes, whose)
    owner, names = pool.owner, len(pool.owner_names)
    if owner is not None and len(owner) and not -1 <= int(owner.min()) <= int(owner.max()) < names:
        given = f"owner names clients up to {int(owner.max())} and owner_names has {names}"
        raise DataError(f"{whose}: {given}; expected a name for each; add names")
    check_features(pool.x, whose)
    return pool


def check_lengths(record: Any, columns: tuple[str, ...], whose: str) -> None:
    """Refuse tensors that have not as many rows as y."""
    y = record.y
    if y.dim() != 1:
        raise DataError(f"{whose}: y has the shape {tuple(y.shape)}; expected (rows,); flatten it")
    for what in columns:
        column: Tensor | None = getattr(record, what)
        if column is not None and (column.dim() < 1 or len(column) != len(y)):
            given = f"{what} has the shape {tuple(column.shape)} and y {len(y)} rows"
            raise DataError(f"{whose}: {given}; expected as many of both; mend what is given")


def check_targets(y: Tensor, task: str, classes: int, whose: str, rows: Tensor | None = None) -> None:
    """Refuse labels that are no whole numbers or that no class has, and targets that are no numbers, in these rows."""
    if task == "classification" and (y.is_floating_point() or y.is_complex()):
        given = f"y is of type {y.dtype} and the task is classification"
        raise DataError(f"{whose}: {given}; expected labels of type torch.int64; convert them, or set the task")
    mine = y if rows is None else y[rows]
    wrong = (mine < 0) | (mine >= classes) if task == "classification" else ~mine.isfinite()
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0, 0])
        row = row if rows is None else int(rows[row])
        wanted = f"labels from 0 to {classes - 1}" if task == "classification" else "numbers"
        raise DataError(f"{whose}: y of row {row} is {y[row].item()}; expected {wanted}; mend y or classes")


def check_features(x: Tensor, whose: str, names: Sequence[str] = (), used: Tensor | None = None) -> None:
    """Refuse features that are no numbers of float32 in a row that is `used` (on the host; None: all are)."""
    if not x.is_floating_point() or not x.numel():
        return
    each = max(1, AT_ONCE // max(1, x[0].numel()))  # x is read once, some rows at a time
    bad = torch.cat([~_fine(some).all(1).cpu() for some in torch.split(x, each)])
    bad = bad if used is None else bad & used
    if not bool(bad.any()):
        return
    row = int(torch.nonzero(bad)[0, 0])
    place = int(torch.nonzero(~_fine(x[row : row + 1])[0])[0, 0])
    value, which = float(x[row].reshape(-1)[place]), names[place] if names else place
    raise DataError(f"{whose}: feature {which} of row {row} is {value:g}; expected a number (nothing "
                    f"missing or infinite, nothing beyond {LARGEST:.1e}); fill, rescale or drop it")  # fmt: skip


def _fine(x: Tensor) -> Tensor:
    """Which values are numbers of float32 (rows, features)."""
    return x.reshape(len(x), -1).float().isfinite()


def as_tensors(record: T, names: tuple[str, ...], whose: str) -> T:
    """The record with tensors where somebody gave arrays, and labels of a type that can be counted."""
    made: dict[str, Any] = {}
    for name in names:
        given = getattr(record, name)
        if given is None:
            continue
        value = given if isinstance(given, Tensor) else tensor_of(given, f"{whose}: {name}")
        small = name == "y" and not value.is_floating_point() and value.dtype not in (torch.int64, torch.int32)
        if value is not given or small:
            made[name] = value.long() if small else value
    return replace(record, **made) if made else record  # type: ignore[type-var]


def tensor_of(given: Any, what: str) -> Tensor:
    """Numbers as a tensor, whatever their order of bytes."""
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        kind = f"{what} is a {type(given).__name__} of type {array.dtype}"
        raise DataError(f"{kind}; expected a tensor or an array of numbers; convert it")
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
