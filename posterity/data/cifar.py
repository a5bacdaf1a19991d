"""CIFAR-10 and CIFAR-100 as they are published: the Python archive (pickles, never loaded as such) and the binary one.

`data/datasets/cifar10.py` and `cifar100.py` say what is in them; `data/plain_pickle.py` reads the pickles.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from posterity.data.archive import Array
from posterity.data.idx import check_labels
from posterity.data.members import read_members
from posterity.data.plain_pickle import PlainPickleError, read_plain
from posterity.data.pool import DataError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BatchFile:
    """One file of pictures: how many it holds, and whether they are for testing."""

    name: str
    rows: int
    test: bool = False


@dataclass(frozen=True)
class Labels:
    """One kind of labels that every picture has."""

    key: str  # in the Python archive
    classes: int
    names: str = ""  # key of the class names in `meta` of the Python archive, or nothing
    file: str = ""  # file of the class names in the binary archive


@dataclass(frozen=True)
class CifarLayout:
    """What the archives of one of the two datasets hold."""

    batches: tuple[BatchFile, ...]
    labels: tuple[Labels, ...]  # in the order of the binary archive


@dataclass(frozen=True)
class Pictures:
    """All pictures in the official order."""

    x: Array  # (N, 32, 32, 3) uint8
    y: Array  # (N,)
    test: Array  # (N,) bool
    class_names: tuple[str, ...]


def read_cifar(path: Path, form: str, layout: CifarLayout, labels: Labels) -> Pictures:
    """Pictures from an archive or its unpacked folder; `form` is "python" or "binary"."""
    binary = form == "binary"
    batches = [f"{batch.name}.bin" if binary else batch.name for batch in layout.batches]
    meta = [labels.file if binary else "meta"] if labels.names else []
    stored = _read_named(path, [*batches, *meta])
    read = _binary if binary else _python
    parts = [
        read(f"{path}: {name}", stored[name], batch.rows, layout, labels)
        for name, batch in zip(batches, layout.batches, strict=True)
    ]
    y = np.concatenate([y for _, y in parts])
    check_labels(str(path), y, 0, labels.classes)
    return Pictures(
        np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
        y,
        np.repeat([batch.test for batch in layout.batches], [len(y) for _, y in parts]),
        _class_names(f"{path}: {meta[0]}", stored[meta[0]], labels, binary) if meta else (),
    )


def _read_named(path: Path, names: list[str]) -> dict[str, bytes]:
    """The files of these names, whatever folder of the archive they are in."""
    found = read_members(path, lambda member: PurePosixPath(member).name in names)
    stored = {PurePosixPath(member).name: data for member, data in found.items()}
    if missing := [name for name in names if name not in stored]:
        raise DataError(f"{path}: has no {', '.join(missing)}; expected {', '.join(names)}; fetch the archive again")
    return stored


def _binary(where: str, data: bytes, rows: int, layout: CifarLayout, labels: Labels) -> tuple[Array, Array]:
    """Rows of one byte for each kind of labels and 3,072 for the pixels."""
    kinds = len(layout.labels)
    if len(data) != rows * (kinds + PIXELS):
        raise DataError(
            f"{where}: {len(data):,} bytes; expected {rows * (kinds + PIXELS):,} ({rows:,} pictures); it is damaged or "
            "another file: fetch the archive again"
        )
    table = np.frombuffer(data, np.uint8).reshape(rows, kinds + PIXELS)
    return table[:, kinds:], table[:, layout.labels.index(labels)]


def _python(where: str, data: bytes, rows: int, layout: CifarLayout, labels: Labels) -> tuple[Array, Array]:
    """A dict with an array of pixels and lists of labels."""
    found = _unpickled(where, data)
    x, y = found.get("data"), found.get(labels.key)
    if not isinstance(x, np.ndarray) or x.shape != (rows, PIXELS):
        shape = x.shape if isinstance(x, np.ndarray) else None
        raise DataError(f"{where}: pictures {shape}; expected ({rows}, {PIXELS}) under 'data'; fetch the archive again")
    if not isinstance(y, list) or len(y) != rows or not all(isinstance(each, int) for each in y):
        given = f"{len(y)} values" if isinstance(y, list) else "nothing"
        raise DataError(f"{where}: {given} under {labels.key!r}; expected {rows} numbers; fetch the archive again")
    return x, np.array(y, dtype=np.int64)


def _class_names(where: str, data: bytes, labels: Labels, binary: bool) -> tuple[str, ...]:
    if binary:
        found: Any = data.decode("latin-1").split()
    else:
        found = _unpickled(where, data).get(labels.names)
    if not isinstance(found, list) or len(found) != labels.classes:
        raise DataError(f"{where}: no {labels.classes} names of classes; expected them; fetch the archive again")
    return tuple(name.decode("latin-1") if isinstance(name, bytes) else str(name) for name in found)


def _unpickled(where: str, data: bytes) -> dict[str, Any]:
    try:
        return read_plain(data)
    except PlainPickleError as error:
        raise DataError(
            f"{where}: refused, {error}; expected a dict of bytes, numbers and names, which is all that is read of a "
            "pickle (nothing in it is run); fetch the archive again, or take the binary archive instead"
        ) from None
