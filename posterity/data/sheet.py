"""Columns of text out of a CSV or Parquet file, and numbers made of them; what is wrong is named by line and column.

`data/tables.py` decides which column is what.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posterity.data.archive import ROOM, Array, check_file
from posterity.data.pool import DataError

MISSING = ("", "nan", "na", "n/a", "null", "none")
INDEX = re.compile(r"__index_level_\d+__")  # of rows, which pandas keeps in a Parquet file and hides when it reads
LARGEST = float(np.finfo(np.float32).max)
HINTS = (  # a value that is no number, and what helps
    (re.compile(r"[+-]?\d{1,3}([ '.]\d{3})+(,\d+)?"), "write numbers without separators of thousands, with a point"),
    (re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"), "write numbers without separators of thousands (1234), or, if the "
     "comma is a decimal one, with a point (1.234)"),
    (re.compile(r"[+-]?\d+,\d+"), "write decimal numbers with a point (1.5)"),
    (re.compile(r"[+-]?[\d.]+ ?%"), "write shares without the sign (0.05)"),
    (re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?"), "a date is no quantity: give days since a first one, or "
     "remove the column"),
    (re.compile(r"true|false|yes|no", re.IGNORECASE), "write 1 and 0"),
    (re.compile(r"[^\d]*[a-z].*", re.IGNORECASE), "of a category, make one column of 0 and 1 for each value; or remove "
     "the column"),
)  # fmt: skip


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
        values = self.columns[name]
        try:
            found = np.array([float(value) for value in values], dtype=np.float64)
            fine = np.abs(found) <= LARGEST  # False for nan
        except ValueError:
            found, fine = np.zeros(0), np.zeros(1, dtype=bool)
        if not fine.all() or any("_" in value for value in values):
            raise self._no_number(name)
        return found

    def words(self, name: str) -> Array:
        """A column in which nothing is missing."""
        for row, value in enumerate(self.columns[name]):
            if value.lower() in MISSING:
                what = f"{value!r}, which is read as a missing value" if value else "empty"
                more = "; a class or client that is called so needs another name" if value else ""
                raise DataError(f"{self.place(row, name)}: {what}; expected a value; fill it in or drop the row{more}")
        return np.array(self.columns[name], dtype=np.str_)

    def _no_number(self, name: str) -> DataError:
        values = self.columns[name]
        blank = sum(value.lower() in MISSING for value in values)
        if blank == len(values) > 1:
            return DataError(
                f"{self.path}, column {name}: no value at all in {blank} rows; expected numbers; remove the column"
            )
        row, value = next((row, value) for row, value in enumerate(values) if not _is_number(value))
        advice = "fill it in, drop the row, or remove the column"
        if value.lower() in MISSING:
            advice += f" ({blank} of {len(values)} rows lack a value)" if blank > 1 else ""
        else:
            advice = next((hint for form, hint in HINTS if form.fullmatch(value)), advice)
        return DataError(
            f"{self.place(row, name)}: {_short(value)}; expected a number (nothing missing or infinite, nothing beyond "
            f"{LARGEST:.1e}); {advice}"
        )


def read_csv(path: Path) -> Sheet:
    """A CSV file with a header line, in UTF-8; columns are separated by commas, semicolons or tabs."""
    text = _text_of(path)
    first = text.partition("\n")[0].partition("\r")[0]
    if not first.strip():
        what = "its first line is blank" if text.strip() else "the file is empty"
        raise DataError(f"{path}: {what}; expected a header line with column names; remove or fill it")
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader)]
        _check_header(path, header)
        for row in reader:
            if row and len(row) != len(header):
                raise _uneven(path, reader.line_num, row, header, separator)
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; expected a CSV file whose quotation marks are closed and whose "
            f"values are short (the last whole row ends in line {lines[-1] if lines else 1}); mend it"
        ) from None
    found = zip(*rows, strict=True) if rows else [()] * len(header)
    return Sheet(path, {n: [v.strip() for v in values] for n, values in zip(header, found, strict=True)}, lines)


def read_parquet(path: Path) -> Sheet:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f'{path}: Parquet files need pyarrow; pip install "posterity[parquet]", or use CSV') from None
    check_file(path, "a .parquet file")
    try:
        facts = parquet.read_metadata(path)
        size = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
        if size > ROOM:
            raise DataError(
                f"{path}: {size:,} bytes unpacked; expected at most {ROOM:,}; use an .npz file of numpy.savez"
            )
        table = parquet.ParquetFile(path).read()
        columns = [[_as_text(value) for value in column.to_pylist()] for column in table.columns]
    except DataError:
        raise
    except (ValueError, OSError, MemoryError) as error:  # pyarrow's own errors are among these
        raise DataError(f"{path}: cannot be read ({error}); expected a whole .parquet file; copy it again") from None
    header = [name.strip() for name in table.column_names]
    _check_header(path, header)
    return Sheet(path, {n: values for n, values in zip(header, columns, strict=True) if not INDEX.fullmatch(n)})


def _text_of(path: Path) -> str:
    check_file(path, "a CSV file")
    try:
        data = path.read_bytes()
        return _decoded(path, data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: not a text file in UTF-8 (line {line} has the byte {data[error.start]:#x}: Latin-1?); expected a "
            "CSV file; save it as UTF-8"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a CSV file that can be read; mend its rights") from None


def _decoded(path: Path, data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}: text in UTF-16; expected a CSV file in UTF-8; save it as UTF-8")
    if (place := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, place) + 1
        raise DataError(f"{path}, line {line}: a NUL byte; expected a CSV file, which is text; save it as UTF-8")
    return data.decode("utf-8-sig")


def _check_header(path: Path, header: list[str]) -> None:
    if "" in header:
        raise DataError(
            f"{path}: column {header.index('') + 1} of the header has no name; expected a name for each column (is it "
            "an index that a program wrote?); name or remove it"
        )
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise DataError(
            f"{path}: the header has {', '.join(map(_short, twice[:5]))} more than once; expected a different name for "
            "each column; rename them"
        )


def _uneven(path: Path, line: int, row: list[str], header: list[str], separator: str) -> DataError:
    commas = separator == "," and len(row) > len(header) and any(value.isdigit() for value in row)
    hint = "; or are there decimal commas? write a point" if commas else ""
    return DataError(f"{path}, line {line}: {len(row)} values; expected {len(header)} as in the header; mend it{hint}")


def _is_number(value: str) -> bool:
    try:
        return abs(float(value)) <= LARGEST and "_" not in value  # infinite or not a number: not even that
    except ValueError:
        return False


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):  # text of programs that do not mark it as such (Impala, older Spark)
        value = value.decode()
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def _short(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:39] + "…")
