"""A user's tables: columns of `data/sheet.py`, or arrays of an .npz, as features, target, client and group.

`data/user_files.py` makes a pool of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posterity.core.hyperparameters import nearest
from posterity.data.archive import Array, check_file, read_npz
from posterity.data.files import PARTS, join_parts
from posterity.data.pool import DataError
from posterity.data.sheet import LARGEST, Sheet, read_csv, read_parquet

TARGETS, CLIENT = ("target", "y", "label"), "client"
SUFFIXES = (".csv", ".npz", ".parquet")
SHOWN = 12  # names of columns in a sentence


@dataclass(frozen=True)
class Columns:
    """Names of the special columns (or arrays of an .npz); None means the usual name, if present."""

    target: str | None = None
    client: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Table:
    """One file as read: y, client and group are still what the file says."""

    path: Path
    x: Array  # (n, *shape)
    y: Array  # (n,)
    client: Array | None = None
    group: Array | None = None
    features: tuple[str, ...] = ()  # names of the columns of x, where it has names
    official_test: Array | None = None  # (n,) bool: which rows the file itself keeps for testing
    notes: tuple[str, ...] = ()


def read_table(path: Path, columns: Columns, inside: Path | None = None) -> Table:
    """A table from a .csv, .npz or .parquet file; with `inside`, links must not lead out of that folder."""
    check_file(path, "a .csv, .npz or .parquet file", inside)
    match path.suffix.lower():
        case ".csv":
            return _from_text(read_csv(path), columns)
        case ".parquet":
            return _from_text(read_parquet(path), columns)
        case ".npz":
            return _from_arrays(path, read_npz(path), columns)
    raise DataError(f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)} or a folder; convert it")


def _from_text(sheet: Sheet, columns: Columns) -> Table:
    path, stored = sheet.path, sheet.columns
    target, client, group = _special(path, stored, columns)
    features = tuple(name for name in stored if name not in (target, client, group))
    if not features:
        raise DataError(f"{path}: no column besides {target}; expected at least one numeric feature; add columns")
    x = np.stack([sheet.numbers(name) for name in features], axis=1)
    y = sheet.words(target)
    who, which = (None if name is None else sheet.words(name) for name in (client, group))
    return Table(path, x, y, who, which, features)


def _from_arrays(path: Path, stored: dict[str, Array], columns: Columns) -> Table:
    official: Array | None = None
    if "x" not in stored and PARTS[0] in stored:
        x, y, official = join_parts(path, stored)
        stored = {**{n: a for n, a in stored.items() if n not in PARTS}, "x": x, "y": y}
    if "x" not in stored:
        raise DataError(f"{path}: arrays {listed(stored) or 'none'}; expected x, y and perhaps client; rename them")
    target, client, group = _special(path, stored, columns)
    x = stored["x"]
    if x.ndim < 1:
        raise DataError(f"{path}: x is a single value; expected an array with a row for each sample; mend it")
    for name in (target, client, group):
        if name is not None and stored[name].shape != (len(x),):
            raise DataError(
                f"{path}: x has {len(x)} rows and {name} the shape {stored[name].shape}; expected ({len(x)},); mend "
                "the array"
            )
    y = named_values(path, target, stored[target])
    who, which = (None if name is None else named_values(path, name, stored[name], True) for name in (client, group))
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x holds {x.dtype}; expected numbers; convert it")
    check_numbers(path, x)
    x = x[:, None] if x.ndim == 1 else x
    return Table(path, x, y, who, which, official_test=official)


def named_values(path: Path, name: str, values: Array, every: bool = False) -> Array:
    """An array of numbers or texts that name something; with `every`, a missing one is refused here."""
    if values.dtype.kind not in "biufUS":
        raise DataError(f"{path}: {name} holds {values.dtype}; expected numbers or texts; convert it")
    try:
        values = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
    except UnicodeDecodeError:
        raise DataError(f"{path}: {name} holds bytes that are not UTF-8; expected texts; convert it") from None
    blank = ~np.isfinite(values) if values.dtype.kind == "f" else values == "" if values.dtype.kind == "U" else None
    if every and blank is not None and blank.any():
        row = int(np.flatnonzero(blank)[0])
        raise DataError(
            f"{path}: {name} has no value in row {row}; expected one in every row; fill it in or drop the row"
        )
    return values


def check_numbers(path: Path, x: Array) -> None:
    """Refuse what is missing, infinite or too large for float32."""
    if x.dtype.kind != "f" or not x.size:
        return
    fine = np.abs(x) <= min(LARGEST, float(np.finfo(x.dtype).max))  # what float16 cannot hold compares as infinite
    if fine.all():
        return
    row = int(np.argwhere(~fine)[0][0])
    value = x[row].reshape(-1)[~fine[row].reshape(-1)][0]
    none = np.flatnonzero(np.isnan(x).reshape(len(x), -1).all(0))
    if len(none):
        raise DataError(
            f"{path}: feature {none[0]} of x is missing in all {len(x)} rows"
            f"{f', as are {len(none) - 1} others' if len(none) > 1 else ''}; expected numbers; remove it"
        )
    what = f"the value {value:g}, beyond {LARGEST:.1e}," if np.isfinite(value) else "a missing or infinite value"
    raise DataError(f"{path}: x has {what} in row {row}; expected numbers; fill, rescale or drop it")


def _special(path: Path, stored: Mapping[str, Any], columns: Columns) -> tuple[str, str | None, str | None]:
    """The names of target, client and group, all different."""
    target = _find(path, stored, columns.target, TARGETS, "target")
    if target is None:
        raise DataError(
            f"{path}: columns {listed(stored)}; expected one called {' or '.join(TARGETS)}; name it: target=…"
        )
    client = _find(path, stored, columns.client, (CLIENT,), "client_column")
    group = _find(path, stored, columns.group, (), "group")
    for first, second, one, other, why in (
        (target, client, "target", "client_column", "every client would have one label"),
        (target, group, "target", "group", "whole classes would be held out"),
        (client, group, "client_column", "group", "a client's rows would all be trained on or all be held out"),
    ):
        if first is not None and first == second:
            raise DataError(
                f"{path}: {one} and {other} are both {first!r}, and so {why}; expected two different columns; name "
                "another or leave one out"
            )
    return target, client, group


def _find(path: Path, stored: Mapping[str, Any], name: str | None, usual: tuple[str, ...], what: str) -> str | None:
    """The column called `name`, or the first of the usual names that is there."""
    if name is None:
        return next((candidate for candidate in usual if candidate in stored), None)
    if name not in stored:
        possible = list(stored)
        if len(possible) > 4 * SHOWN:
            possible = difflib.get_close_matches(name, possible, SHOWN) or [*possible[:SHOWN], "…"]
        raise DataError(f"{path}: no column {name!r} for {what}; {nearest(name, possible)}")
    return name


def listed(names: Iterable[str]) -> str:
    """The first names of many."""
    every = [*names]
    return ", ".join(every[:SHOWN]) + (f", … ({len(every)} in all)" if len(every) > SHOWN else "")
