"""CIFAR-10 and CIFAR-100 as they are published: the Python archive (pickles, never loaded as such) and the binary one.

A pickle may call anything, so those of the Python archives are read as data. They hold a dict of names, with bytes,
numbers, lists of numbers or names, and one array of bytes by NumPy. `pickletools.genops` lists the opcodes; those that
build such values are followed on a stack, and the three names by which NumPy describes an array stand for that
description only. No class is looked up and nothing is called; whatever else occurs is refused.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posterity.data.archives import Array, demand, read_named, reading
from posterity.data.files import check_labels

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
    with reading(where, f"{rows:,} pictures; fetch the archive again"):
        table = np.frombuffer(data, np.uint8).reshape(rows, kinds + PIXELS)
    return table[:, kinds:], table[:, layout.labels.index(labels)]


def _python(where: str, data: bytes, rows: int, layout: CifarLayout, labels: Labels) -> tuple[Array, Array]:
    """A dict with an array of pixels and lists of labels."""
    with reading(where, f"{rows:,} pictures as data, and as many {labels.key}; or take the binary archive"):
        found = read_plain(data)
        x, y = np.asarray(found["data"]), np.asarray(found[labels.key])
        fits = x.shape == (rows, PIXELS) and y.shape == (rows,) and y.dtype.kind == "i"
        demand(fits, f"pictures {x.shape}, labels {y.shape}")
    return x, y


def _class_names(where: str, data: bytes, labels: Labels, binary: bool) -> tuple[str, ...]:
    with reading(where, f"{labels.classes} names of classes; fetch the archive again"):
        found = data.decode("latin-1").split() if binary else read_plain(data)[labels.names]
        demand(len(found) == labels.classes, f"{len(found)} names")
    return tuple(_text(name) for name in found)


RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NDARRAY, DTYPE = "numpy ndarray", "numpy dtype"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


class PlainPickleError(ValueError):
    """A pickle that holds more than plain values, or that is damaged."""


@dataclass(frozen=True)
class _Name:
    """A name of NumPy's, never looked up."""

    text: str


@dataclass
class _Bytes:
    """An array of bytes in the making."""

    value: Array | None = None


@dataclass(frozen=True)
class _Kind:
    """The type of an array's elements."""

    text: str


_MARK = _Name("mark")


def read_plain(data: bytes) -> dict[str, Any]:
    """The dict that a pickle holds: str to int, str, bytes, list of these, or array of bytes."""
    try:
        found = _followed(data)
    except PlainPickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise PlainPickleError(f"it is damaged: {error or type(error).__name__}") from None
    if not isinstance(found, dict):
        raise PlainPickleError(f"it holds a {type(found).__name__}, no dict")
    return {_text(key): _plain(value) for key, value in found.items()}


def _followed(data: bytes) -> Any:
    """What the opcodes leave on the stack, with the memo that the format has."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        place = max((k for k, value in enumerate(stack) if value is _MARK), default=-1)
        if place < 0:
            raise PlainPickleError("it is damaged: a mark is missing")
        values = stack[place + 1 :]
        del stack[place:]
        return values

    argument: Any  # a number, text or bytes, as the opcode has it
    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "STOP":
                return stack.pop()
            case "PROTO" | "FRAME":
                continue
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "BINBYTES" | "SHORT_BINBYTES":
                stack.append(argument)
            case "BINSTRING" | "SHORT_BINSTRING":  # bytes of Python 2, which genops gives as text
                stack.append(argument.encode("latin-1"))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append(CONSTANTS[opcode.name])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"DICT": {}, "LIST": [], "TUPLE": ()}[opcode.name[6:]])
            case "MARK":
                stack.append(_MARK)
            case "GLOBAL":
                stack.append(_known(argument))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_known(f"{module} {attribute}"))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "APPEND" | "APPENDS":
                values = since_mark() if opcode.name == "APPENDS" else [stack.pop()]
                _expect(stack[-1], list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = since_mark() if opcode.name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
                pairs = zip(values[::2], values[1::2], strict=True)
                _expect(stack[-1], dict).update((_text(key), value) for key, value in pairs)
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_described(function, arguments))
            case "BUILD":
                state = stack.pop()
                _complete(stack[-1], state)
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if opcode.name == "MEMOIZE" else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case _:
                raise PlainPickleError(f"it holds the opcode {opcode.name}, which no such file needs")
    raise PlainPickleError("it has no end")


def _known(text: str) -> _Name:
    if text not in (*RECONSTRUCT, NDARRAY, DTYPE):
        raise PlainPickleError(f"it names {text!r}, which no such file needs")
    return _Name(text)


def _described(function: Any, arguments: Any) -> _Bytes | _Kind:
    """What NumPy's functions would make, without calling them."""
    given = _expect(arguments, tuple)
    if isinstance(function, _Name) and function.text in RECONSTRUCT and given[0] == _Name(NDARRAY):
        return _Bytes()
    if function == _Name(DTYPE) and _text(given[0]) == "u1":
        return _Kind("u1")
    raise PlainPickleError(f"it calls {getattr(function, 'text', 'something')} with {str(given)[:40]}")


def _complete(made: Any, state: Any) -> None:
    """Give an array its bytes; an element's type is known already."""
    if isinstance(made, _Kind):
        return
    _, shape, kind, fortran, data = _expect(state, tuple)
    lengths = [_expect(n, int) for n in _expect(shape, tuple)]
    if not isinstance(made, _Bytes) or kind != _Kind("u1") or not isinstance(data, bytes):
        raise PlainPickleError("it holds an array that is none of bytes")
    if min(lengths, default=0) < 0 or math.prod(lengths) != len(data):
        raise PlainPickleError(f"it holds an array that claims the shape {tuple(lengths)} and has {len(data):,} bytes")
    made.value = np.frombuffer(data, np.uint8).reshape(lengths, order="F" if fortran else "C")


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
    return value.decode("latin-1") if isinstance(value, bytes) else _expect(value, str)


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise PlainPickleError(f"it holds a {type(value).__name__} where a {kind.__name__} belongs")
    return value
