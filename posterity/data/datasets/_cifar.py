"""CIFAR-10 and CIFAR-100 as they are published: the Python archive (pickles, never loaded as such) and the binary one.

A pickle may call anything, so those of the Python archives are read as data: `pickletools.genops` lists the opcodes,
and the numbers and texts among them are taken as they stand, one after the other. Nothing is built, looked up or
called. What no such file needs is refused: other opcodes, and names that are not those by which NumPy describes an
array.
"""

import pickletools
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from posterity.data.archives import Array, demand, read_named, reading
from posterity.data.files import check_labels

PIXELS = 3 * 32 * 32
VALUES = re.compile("BININT[12]?|LONG1|(SHORT_)?BIN(STRING|BYTES|UNICODE)")
FLAGS = {"NEWTRUE": True, "NEWFALSE": False}
STRUCTURE = re.compile(
    "PROTO|STOP|NONE|MARK|EMPTY_(DICT|LIST|TUPLE)|SETITEMS?|APPENDS?|TUPLE[123]?|REDUCE|BUILD|(LONG_)?BIN(PUT|GET)"
)
NAMES = ("numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype")


@dataclass(frozen=True)
class Labels:
    """One kind of labels that every picture has."""

    key: str  # in the Python archive
    classes: int
    names: str = ""  # of the classes: key in `meta` of the Python archive, and file in the binary one


def read_cifar(
    path: Path, form: str, batches: dict[str, int], kinds: tuple[Labels, ...], labels: Labels
) -> tuple[Array, Array, Array, tuple[str, ...]]:
    """Pictures (N, 32, 32, 3), labels, which are for testing, and names of classes, in the official order.

    `path` is an archive or its unpacked folder; `form` is "python" or "binary". `batches` says how many pictures each
    file has, of which the last is for testing; `kinds` are all labels in the order of the binary archive.
    """
    binary = form == "binary"
    meta = f"{labels.names}.txt" if binary else "meta"
    files = {f"{name}.bin" if binary else name: rows for name, rows in batches.items()}
    stored = read_named(path, [*files, *([meta] if labels.names else [])])
    parts = []
    for name, rows in files.items():
        wanted = f"{rows:,} pictures and as many {labels.key}; fetch the archive again"
        with reading(f"{path}: {name}", wanted if binary else f"{wanted}, or take the binary one"):
            data = stored[name]
            parts.append(_binary(data, rows, kinds, labels) if binary else _python(data, rows, labels))
    y = np.concatenate([y for _, y in parts])
    check_labels(path, y, 0, labels.classes)
    x = np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    test = np.arange(len(y)) >= len(y) - rows
    return x, y, test, _class_names(f"{path}: {meta}", stored[meta], labels, binary) if labels.names else ()


def _binary(data: bytes, rows: int, kinds: tuple[Labels, ...], labels: Labels) -> tuple[Array, Array]:
    """Rows of one byte for each kind of labels and 3,072 for the pixels."""
    table = np.frombuffer(data, np.uint8).reshape(rows, len(kinds) + PIXELS)
    return table[:, len(kinds) :], table[:, kinds.index(labels)]


def _python(data: bytes, rows: int, labels: Labels) -> tuple[Array, Array]:
    """The one text that is long enough for the pixels, and the numbers behind the name of the labels.

    Before the pixels stands whether they are stored column by column.
    """
    found = read_plain(data)
    place = [k for k, value in enumerate(found) if isinstance(value, str) and len(value) == rows * PIXELS]
    y = list(takewhile(lambda value: type(value) is int, _behind(labels.key, found)))
    demand(len(place) == 1 and len(y) == rows, f"{len(place)} arrays of so many pixels, {len(y)} labels")
    pixels = np.frombuffer(found[place[0]].encode("latin-1"), np.uint8)
    return pixels.reshape(rows, PIXELS, order="F" if found[place[0] - 1] is True else "C"), np.array(y)


def _class_names(where: str, data: bytes, labels: Labels, binary: bool) -> tuple[str, ...]:
    with reading(where, f"{labels.classes} names of classes; fetch the archive again"):
        if binary:
            names = data.decode("latin-1").split()
        else:
            names = _behind(labels.names, read_plain(data))[: labels.classes]
        demand(len(names) == labels.classes, f"{len(names)} names")
    return tuple(map(str, names))


def _behind(key: str, found: list[Any]) -> list[Any]:
    return found[found.index(key) + 1 :]


def read_plain(data: bytes) -> list[Any]:
    """The numbers, truth values and texts that stand in a pickle; bytes as text in Latin-1."""
    found: list[Any] = []
    argument: Any  # a number, text or bytes, as the opcode has it
    for opcode, argument, _ in pickletools.genops(data):
        if VALUES.fullmatch(opcode.name):
            found.append(argument.decode("latin-1") if isinstance(argument, bytes) else argument)
        elif opcode.name in FLAGS:
            found.append(FLAGS[opcode.name])
        elif opcode.name == "GLOBAL":
            demand(argument in NAMES, f"it names {argument!r}, which no such file needs")
        else:
            known = STRUCTURE.fullmatch(opcode.name) is not None
            demand(known, f"it holds the opcode {opcode.name}, which no such file needs")
    return found
