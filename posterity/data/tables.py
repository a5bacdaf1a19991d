"""A user's tables: columns of a CSV or Parquet file, or arrays of an .npz, as features, target, client and group.

What is wrong is named by line and column. `data/user_files.py` makes a pool of tables.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from posterity.data.archives import ROOM, Array, check_file, read_file, read_npz, reading
from posterity.data.files import PARTS, join_parts
from posterity.data.pool import LARGEST, DataError, check_features, listed, tensor_of
from posterity.settings.hyperparameters import nearest

MISSING = ("", "nan", "na", "n/a", "null", "none")
INDEX = re.compile(r"__index_level_\d+__")  # of rows, which pandas keeps in a Parquet file and hides when it reads
TARGETS, CLIENT = ("target", "y", "label"), "client"
SUFFIXES = (".csv", ".npz", ".parquet")


@dataclass(frozen=True)
class Sheet:
    """Columns by name, as text, and where each row stands in its file."""

    path: Path
    columns: dict[str, Sequence[str]]
    lines: Sequence[int] | None = None  # None for a file without lines

    def place(self, row: int, name: str) -> str:
        """Where a value stands, in words."""
        unit, number = ("row", row) if self.lines is None else ("line", self.lines[row])
        return f"{self.path}, {unit} {number}, column {name}"

    def numbers(self, name: str) -> Array:
        """A column as numbers within the range of float32; the first value that is none is named."""
        found = np.array([_number(value) for value in self.columns[name]], dtype=np.float64)
        wrong = np.flatnonzero(~(np.abs(found) <= LARGEST))  # also nan
        if len(wrong):
            row = int(wrong[0])
            given = f"{self.place(row, name)}: {_short(self.columns[name][row])} ({len(wrong)} of {len(found)} rows)"
            wanted = f"numbers such as 1234.5, nothing missing, nothing beyond {LARGEST:.1e}"
            raise DataError(f"{given}; expected {wanted}; mend it, drop the row, or remove the column")
        return found

    def words(self, name: str) -> Array:
        """A column in which nothing is missing."""
        for row, value in enumerate(self.columns[name]):
            if value.lower() in MISSING:
                given = f"{self.place(row, name)}: {value!r}, which is read as a missing value"
                raise DataError(f"{given}; expected a value; fill it in, drop the row, or choose another name")
        return np.array(self.columns[name], dtype=np.str_)


def read_csv(path: Path) -> Sheet:
    """A CSV file with a header line, in UTF-8; columns are separated by commas, semicolons or tabs."""
    text = _text_of(path)
    first = text.partition("\n")[0].partition("\r")[0]
    if not first.strip():
        raise DataError(f"{path}: its first line is blank; expected a header line with column names; fill it in")
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader)]
        _check_header(path, header)
        for row in reader:
            if row and len(row) != len(header):
                given = f"{path}, line {reader.line_num}: {len(row)} values"
                wanted = f"{len(header)} as in the header; mend it (decimal commas? write a point)"
                raise DataError(f"{given}; expected {wanted}")
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        complete = f"the last whole row ends in line {lines[-1] if lines else 1}"
        raise DataError(f"{path}, line {reader.line_num}: {error}; expected a CSV file whose quotation marks are "
                        f"closed and whose values are short ({complete}); mend it") from None  # fmt: skip
    found = zip(*rows, strict=True) if rows else [()] * len(header)
    return Sheet(path, {n: [v.strip() for v in values] for n, values in zip(header, found, strict=True)}, lines)


def read_parquet(path: Path) -> Sheet:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f'{path}: Parquet files need pyarrow; pip install "posterity[parquet]", or use CSV') from None
    check_file(path, "a .parquet file")
    with reading(path, "a whole .parquet file; copy it again"):  # pyarrow's own errors are among those
        facts = parquet.read_metadata(path)
        size = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
        if size > ROOM:
            raise DataError(f"{path}: {size:,} bytes unpacked; expected at most {ROOM:,}; use an .npz of numpy.savez")
        table = parquet.ParquetFile(path).read()
        columns = [[_as_text(value) for value in column.to_pylist()] for column in table.columns]
    header = [name.strip() for name in table.column_names]
    _check_header(path, header)
    return Sheet(path, {n: values for n, values in zip(header, columns, strict=True) if not INDEX.fullmatch(n)})


def _text_of(path: Path) -> str:
    data = read_file(path)
    try:
        text = data.decode("utf-8-sig")
        place = data.find(b"\0")
    except UnicodeDecodeError as error:
        place = error.start
    if place >= 0:
        line = data.count(b"\n", 0, place) + 1
        raise DataError(f"{path}: line {line} has the byte {data[place]:#x}; expected text in UTF-8; save it as that")
    return text


def _check_header(path: Path, header: list[str]) -> None:
    if "" in header:
        place = header.index("") + 1
        raise DataError(f"{path}: column {place} of the header has no name (is it an index that a program wrote?); "
                        "expected a name for each column; name or remove it")  # fmt: skip
    if twice := [_short(name) for name, count in Counter(header).items() if count > 1]:
        raise DataError(f"{path}: the header has {listed(twice)} more than once; expected different names; rename them")


def _number(value: str) -> float:
    """A number as it is written; nan for what is none, as Python's 1_000."""
    try:
        return math.nan if "_" in value else float(value)
    except ValueError:
        return math.nan


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):  # text of programs that do not mark it as such (Impala, older Spark)
        value = value.decode()
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def _short(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:39] + "…")


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
        if name is not None and (given := stored[name].shape) != (len(x),):
            raise DataError(f"{path}: x has {len(x)} rows and {name} the shape {given}; expected ({len(x)},); mend it")
    y = named_values(path, target, stored[target])
    who, which = (None if name is None else named_values(path, name, stored[name], True) for name in (client, group))
    check_features(tensor_of(x, f"{path}: x"), f"{path}: x")
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
        raise DataError(f"{path}: {name} has no value in row {row}; expected one in every row; fill it in or drop it")
    return values


def _special(path: Path, stored: Mapping[str, Any], columns: Columns) -> tuple[str, str | None, str | None]:
    """The names of target, client and group, all different."""
    target = _find(path, stored, columns.target, TARGETS, "target")
    if target is None:
        wanted = " or ".join(TARGETS)
        raise DataError(f"{path}: columns {listed(stored)}; expected one called {wanted}; name it: target=…")
    client = _find(path, stored, columns.client, (CLIENT,), "client_column")
    group = _find(path, stored, columns.group, (), "group")
    special = {"target": target, "client_column": client, "group": group}
    for (one, first), (other, second) in combinations(special.items(), 2):
        if first is not None and first == second:
            given = f"{one} and {other} are both {first!r}"
            raise DataError(f"{path}: {given}; expected different columns; name another or leave one out")
    return target, client, group


def _find(path: Path, stored: Mapping[str, Any], name: str | None, usual: tuple[str, ...], what: str) -> str | None:
    """The column called `name`, or the first of the usual names that is there."""
    if name is None:
        return next((candidate for candidate in usual if candidate in stored), None)
    if name not in stored:
        raise DataError(f"{path}: no column {name!r} for {what}; {nearest(name, stored)}")
    return name
