"""CIFAR-10 and CIFAR-100 as they are published: the Python archive (pickles) and the binary one.

A pickle may call anything. Those of the Python archives hold a dict of names, with bytes, numbers, lists of numbers or
names, and one array of bytes by NumPy. Python's own reader of pickles is left with the opcodes that build such values,
and with three names, by which NumPy describes an array: they are not looked up, and stand for that description only.
Whatever else occurs is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.data.archives import Array, read_named
from posterity.data.files import check_labels
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


def read_cifar(
    path: Path, form: str, layout: CifarLayout, labels: Labels
) -> tuple[Array, Array, Array, tuple[str, ...]]:
    """Pictures (N, 32, 32, 3), labels, which are for testing, and names of classes, in the official order.

    `path` is an archive or its unpacked folder; `form` is "python" or "binary".
    """
    binary = form == "binary"
    batches = [f"{batch.name}.bin" if binary else batch.name for batch in layout.batches]
    meta = [labels.file if binary else "meta"] if labels.names else []
    stored = read_named(path, [*batches, *meta])
    read = _binary if binary else _python
    parts = [
        read(f"{path}: {name}", stored[name], batch.rows, layout, labels)
        for name, batch in zip(batches, layout.batches, strict=True)
    ]
    y = np.concatenate([y for _, y in parts])
    check_labels(path, y, 0, labels.classes)
    x = np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    test = np.repeat([batch.test for batch in layout.batches], [len(y) for _, y in parts])
    return x, y, test, _class_names(f"{path}: {meta[0]}", stored[meta[0]], labels, binary) if meta else ()


def _binary(where: str, data: bytes, rows: int, layout: CifarLayout, labels: Labels) -> tuple[Array, Array]:
    """Rows of one byte for each kind of labels and 3,072 for the pixels."""
    kinds = len(layout.labels)
    if len(data) != (size := rows * (kinds + PIXELS)):
        raise DataError(f"{where}: {len(data):,} bytes; expected {size:,} ({rows:,} pictures); fetch the archive again")
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
    found: Any = data.decode("latin-1").split() if binary else _unpickled(where, data).get(labels.names)
    if not isinstance(found, list) or len(found) != labels.classes:
        raise DataError(f"{where}: no {labels.classes} names of classes; expected them; fetch the archive again")
    return tuple(_text(name) for name in found)


def _unpickled(where: str, data: bytes) -> dict[str, Any]:
    try:
        return read_plain(data)
    except PlainPickleError as error:
        raise DataError(
            f"{where}: refused, {error}; expected a dict of bytes, numbers and names, which is all that is read of a "
            "pickle (nothing in it is run); fetch the archive again, or take the binary archive instead"
        ) from None


RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NDARRAY, DTYPE = "numpy ndarray", "numpy dtype"
OPCODES = (
    "PROTO", "FRAME", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
    "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING", "EMPTY_DICT", "EMPTY_LIST",
    "EMPTY_TUPLE", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
)  # fmt: skip


class PlainPickleError(ValueError):
    """A pickle that holds more than plain values, or that is damaged."""


class _Bytes:
    """An array of bytes in the making."""

    value: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if kind != _Name("u1") or not isinstance(data, bytes):
            raise PlainPickleError("it holds an array that is none of bytes")
        if min(shape, default=0) < 0 or math.prod(shape) != len(data):
            raise PlainPickleError(f"it holds an array that claims the shape {shape} and has {len(data):,} bytes")
        self.value = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Name(NamedTuple):
    """A name of NumPy's, never looked up, or the type of an array's elements."""

    text: str

    def __call__(self, *given: Any) -> _Bytes | _Name:
        """What NumPy's functions would make."""
        if self.text in RECONSTRUCT and given[:1] == (_Name(NDARRAY),):
            return _Bytes()
        if self.text == DTYPE and given[:1] in (("u1",), (b"u1",)):
            return _Name("u1")
        raise PlainPickleError(f"it calls {self.text} with {reprlib.repr(given)}")

    def __setstate__(self, state: Any) -> None:
        """An element's type is known already."""


class _Opcodes(dict[int, Any]):
    """What Python does for each opcode that is needed."""

    def __missing__(self, code: int) -> None:
        raise PlainPickleError(f"it holds the opcode {chr(code)!r}, which no such file needs")


class _Reader(pickle._Unpickler):  # in Python, since that written in C knows all opcodes
    dispatch = _Opcodes((code, pickle._Unpickler.dispatch[code]) for name in OPCODES for code in getattr(pickle, name))

    def find_class(self, module: str, name: str) -> _Name:
        if f"{module} {name}" not in (*RECONSTRUCT, NDARRAY, DTYPE):
            raise PlainPickleError(f"it names '{module} {name}', which no such file needs")
        return _Name(f"{module} {name}")


def read_plain(data: bytes) -> dict[str, Any]:
    """The dict that a pickle holds: str to int, str, bytes, list of these, or array of bytes."""
    try:
        found = _Reader(io.BytesIO(data), encoding="bytes").load()
    except PlainPickleError:
        raise
    except Exception as error:
        raise PlainPickleError(f"it is damaged: {error or type(error).__name__}") from None
    if not isinstance(found, dict):
        raise PlainPickleError(f"it holds a {type(found).__name__}, no dict")
    return {_text(key): _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    """A value of the dict as a caller may have it."""
    if isinstance(value, _Bytes) and value.value is not None:
        return value.value
    if isinstance(value, (int, str, bytes)) or value is None:
        return value
    if isinstance(value, list) and all(isinstance(each, (int, str, bytes)) for each in value):
        return value
    raise PlainPickleError(f"it holds a {type(value).__name__} that is no list of numbers or names")


def _text(value: Any) -> str:
    if not isinstance(value, (str, bytes)):
        raise PlainPickleError(f"it holds a {type(value).__name__} where a name belongs")
    return value.decode("latin-1") if isinstance(value, bytes) else value
