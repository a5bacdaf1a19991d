"""Numbers out of MATLAB's .mat files of version 5 to 7: what Digits-Five is distributed in.

Arrays of numbers and cells of them are read; characters, structures, sparse arrays and objects are left out. Version
7.3 is HDF5, another format, and refused. Nothing is allocated beyond what the file may expand to (`data/archives.py`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posterity.data.archives import Array, check_arrays, check_size, most_bytes, read_file, reading
from posterity.data.pool import DataError

NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MATRIX, COMPRESSED = 14, 15
CELL, NUMERIC = 1, range(6, 16)  # classes of arrays: double is 6, uint64 is 15
DEEPEST = 3  # cells in cells


@dataclass(frozen=True)
class Cells:
    """A table of arrays."""

    shape: tuple[int, ...]
    items: tuple[Array, ...]  # column by column

    def at(self, row: int, column: int) -> Array:
        return self.items[row + self.shape[0] * column]


Value = Array | Cells


def read_mat(path: Path, *needed: str) -> dict[str, Value]:
    """The arrays of a .mat file by name, among them those `needed`."""
    data = read_file(path)
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None or b"7.3" in data[:20]:
        kind = "HDF5 (version 7.3)" if b"7.3" in data[:20] or data[:4] == b"\x89HDF" else "no .mat file"
        raise DataError(f"{path}: is {kind}; expected a .mat file of version 5 to 7; save it with -v7")
    with reading(path, "it complete; fetch it again"):
        found = dict(_arrays(_Reader(path, order), memoryview(data)[128:]))
    check_arrays(path, found, needed)
    return found


@dataclass
class _Reader:
    """What the parts of one file share."""

    path: Path
    order: str  # of bytes
    expanded: int = 0

    def unpack(self, data: memoryview) -> memoryview:
        machine = zlib.decompressobj()
        found = machine.decompress(data, most_bytes(self.path) + 1)
        self.expanded += len(found)
        check_size(self.path, self.expanded)
        if not machine.eof:
            raise EOFError("a compressed array has no end")
        return memoryview(found)

    def elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Type and content of each element, one after the other."""
        place = 0
        while place < len(data):
            kind, size = np.frombuffer(data[place : place + 8], f"{self.order}u4").tolist()
            if kind >> 16:  # a small element has type, size and content in eight bytes
                yield kind & 0xFFFF, data[place + 4 : place + 4 + (kind >> 16)]
                place += 8
                continue
            content = data[place + 8 : place + 8 + size]
            if len(content) != size:
                raise EOFError(f"an element claims {size:,} bytes and has {len(content):,}")
            yield kind, content
            place += 8 + size + (-size % 8 if kind != COMPRESSED else 0)

    def numbers(self, kind: int, content: memoryview) -> Array:
        if kind not in NUMBERS:
            raise ValueError(f"an array of type {kind}")
        return np.frombuffer(content, np.dtype(NUMBERS[kind]).newbyteorder(self.order))  # type: ignore[arg-type]


def _arrays(reader: _Reader, data: memoryview) -> Iterator[tuple[str, Value]]:
    for kind, content in reader.elements(data):
        inner = next(reader.elements(reader.unpack(content))) if kind == COMPRESSED else (kind, content)
        if inner[0] == MATRIX:
            name, value = _matrix(reader, inner[1], 0)
            if value is not None:
                yield name, value


def _matrix(reader: _Reader, data: memoryview, depth: int) -> tuple[str, Value | None]:
    """Name and value of one array; None where it holds no numbers."""
    parts = reader.elements(data)
    kind = int(reader.numbers(*next(parts))[0]) & 0xFF
    shape = tuple(reader.numbers(*next(parts)).tolist())
    name = bytes(next(parts)[1]).decode("latin-1")
    if kind == CELL and depth < DEEPEST:
        items = [_matrix(reader, content, depth + 1)[1] for _, content in parts]
        arrays = tuple(item for item in items if isinstance(item, np.ndarray))
        if len(arrays) == len(items) == math.prod(shape):
            return name, Cells(shape, arrays)
    if kind not in NUMERIC:
        return name, None
    values = reader.numbers(*next(parts))
    if min(shape, default=0) < 0 or math.prod(shape) != len(values):
        raise ValueError(f"{name!r} claims the shape {shape} and has {len(values):,} values")
    return name, values.reshape(shape, order="F")
