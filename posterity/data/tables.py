"""Reading a user's tables: columns of text from CSV or Parquet, turned into features, target, client and group.

`data/user_files.py` makes a pool of them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posterity.core.hyperparameters import nearest
from posterity.data.files import Array, read_npz
from posterity.data.pool import DataError

TARGETS, CLIENT = ("target", "y", "label"), "client"
SUFFIXES = (".csv", ".npz", ".parquet")


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


def read_table(path: Path, columns: Columns) -> Table:
    """A table from a .csv, .npz or .parquet file."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected a .csv, .npz or .parquet file; check the path")
    match path.suffix.lower():
        case ".csv":
            return _from_text(path, _read_csv(path), columns)
        case ".parquet":
            return _from_text(path, _read_parquet(path), columns)
        case ".npz":
            return _from_arrays(path, read_npz(path), columns)
    raise DataError(f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)} or a folder; convert it")


def _read_csv(path: Path) -> dict[str, list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file in UTF-8; expected a CSV file; save it as UTF-8") from None
    first = text.partition("\n")[0]
    if not first.strip():
        raise DataError(f"{path}: the file is empty; expected a header line with column names; remove or fill it")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    header = [name.strip() for name in next(reader)]
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: header {header}; expected a different name for each column; rename them")
    rows = []
    for row in reader:
        if row and len(row) != len(header):
            raise DataError(
                f"{path}, line {reader.line_num}: {len(row)} values; expected {len(header)} as in the header; mend it"
            )
        if row:
            rows.append(row)
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(header)}


def _read_parquet(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f'{path}: Parquet files need pyarrow; pip install "posterity[parquet]", or use CSV') from None
    return {name: [_as_text(v) for v in values] for name, values in parquet.read_table(path).to_pydict().items()}


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _from_text(path: Path, stored: dict[str, list[str]], columns: Columns) -> Table:
    target = _find(path, stored, columns.target, TARGETS, "target", required=True)
    client = _find(path, stored, columns.client, (CLIENT,), "client_column")
    group = _find(path, stored, columns.group, (), "group")
    features = tuple(name for name in stored if name not in (target, client, group))
    if not features or target is None:
        raise DataError(f"{path}: no column besides {target}; expected at least one numeric feature; add columns")
    x = np.stack([_numbers(path, name, stored[name]) for name in features], axis=1)
    special = {
        name: _filled(path, name, stored[name]) if name is not None else None for name in (target, client, group)
    }
    y = special[target]
    assert y is not None
    return Table(path, x, y, special[client], special[group], features)


def _from_arrays(path: Path, stored: dict[str, Array], columns: Columns) -> Table:
    if "x" not in stored:
        raise DataError(f"{path}: arrays {', '.join(stored) or 'none'}; expected x, y and perhaps client; rename them")
    target = _find(path, stored, columns.target, TARGETS, "target", required=True)
    client = _find(path, stored, columns.client, (CLIENT,), "client_column")
    group = _find(path, stored, columns.group, (), "group")
    x, y = stored["x"], stored[target or ""]
    who, which = (None if name is None else stored[name] for name in (client, group))
    for name, column in ((target, y), (client, who), (group, which)):
        if column is not None and column.shape != (len(x),):
            raise DataError(
                f"{path}: x has {len(x)} rows and {name} the shape {column.shape}; expected ({len(x)},); mend the array"
            )
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x holds {x.dtype}; expected numbers; convert it")
    if x.dtype.kind == "f" and not (finite := np.isfinite(x)).all():
        row = int(np.argwhere(~finite)[0][0])
        raise DataError(f"{path}: x has a missing or infinite value in row {row}; expected numbers; fill or drop it")
    return Table(path, x[:, None] if x.ndim == 1 else x, y, who, which)


def _find(
    path: Path, stored: dict[str, Any], name: str | None, usual: tuple[str, ...], what: str, required: bool = False
) -> str | None:
    """The column called `name`, or the first of the usual names that is there."""
    if name is not None:
        if name not in stored:
            raise DataError(f"{path}: no column {name!r} for {what}; {nearest(name, stored)}")
        return name
    for candidate in usual:
        if candidate in stored:
            return candidate
    if required:
        raise DataError(
            f"{path}: columns {', '.join(stored)}; expected one called {' or '.join(usual)}; name it: {what}=…"
        )
    return None


def _numbers(path: Path, name: str, values: Sequence[str]) -> Array:
    """A feature column as numbers; the first value that is none is named by its line."""
    for row, value in enumerate(values):
        try:
            fine = math.isfinite(float(value))
        except ValueError:
            fine = False
        if not fine:
            raise DataError(
                f"{path}, line {row + 2}, column {name}: {value!r}; expected a number (nothing missing or infinite); "
                "fill it in, drop the row, or remove the column"
            )
    return np.array(values, dtype=np.float64)


def _filled(path: Path, name: str, values: Sequence[str]) -> Array:
    for row, value in enumerate(values):
        if value.lower() in ("", "nan", "na", "null"):
            raise DataError(
                f"{path}, line {row + 2}, column {name}: empty; expected a value; fill it in or drop the row"
            )
    return np.array(values, dtype=np.str_)
