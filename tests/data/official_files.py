"""Small files in the forms in which datasets are distributed, written from scratch."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def bytes_of(*shape: int) -> Array:
    """Random pixels."""
    return RNG.integers(0, 256, shape).astype(np.uint8)


def idx(values: Array) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_idx(folder: Path, names: tuple[str, ...], arrays: list[Array], packed: bool = True) -> None:
    for name, values in zip(names, arrays, strict=True):
        data = idx(values)
        write(folder / (f"{name}.gz" if packed else name), gzip.compress(data) if packed else data)


def tar(path: Path, members: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as stored:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            stored.addfile(info, io.BytesIO(data))
        for info in more:
            stored.addfile(info)
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as stored:
        for name, data in members.items():
            stored.writestr(name, data)
    return path


# The opcodes of protocol 2 as Python 2 wrote them: the pickles of the CIFAR archives.


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def listed(values: list[int] | list[str]) -> bytes:
    items = [text(each) if isinstance(each, str) else number(each) for each in values]
    return b"]q\x09(" + b"".join(items) + b"e"


def array(values: Array, kind: str = "u1", claimed: tuple[int, ...] | None = None, order: bytes = b"\x89") -> bytes:
    """An array as NumPy pickles it; order is the opcode of False (row by row) or True."""
    shape = b"".join(number(n) for n in claimed or values.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nq\x07" + text(kind) + b"K\x00K\x01\x87Rq\x08(K\x03" + text("|") + b"NNN"
    dtype += number(-1) + number(-1) + b"K\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85" + text("b") + b"\x87Rq\x06"
    return start + b"(K\x01" + shape + dtype + order + text(values.tobytes()) + b"tb"


def pickled(**values: bytes) -> bytes:
    pairs = [text(key) + value for key, value in values.items()]
    return b"\x80\x02}q\x01(" + b"".join(pairs) + b"u."


# MATLAB's format, version 5.


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(name: str, values: Array) -> bytes:
    kind, code = {"uint8": (2, 9), "float64": (9, 6), "float32": (7, 7), "int32": (5, 12)}[str(values.dtype)]
    head = element(6, struct.pack("<II", code, 0)) + element(5, np.array(values.shape, "<i4").tobytes())
    return element(14, head + element(1, name.encode()) + element(kind, values.tobytes(order="F")))


def cells(name: str, shape: tuple[int, int], items: list[Array]) -> bytes:
    head = element(6, struct.pack("<II", 1, 0)) + element(5, np.array(shape, "<i4").tobytes())
    return element(14, head + element(1, name.encode()) + b"".join(matrix("", each) for each in items))


def mat(*arrays: bytes, packed: bool = True) -> bytes:
    parts = []
    for data in arrays:
        small = zlib.compress(data)
        parts.append(struct.pack("<II", 15, len(small)) + small if packed else data)
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + b"".join(parts)


def leaf(folder: Path, users: dict[str, tuple[list[Any], list[Any]]], name: str = "all_data_0.json") -> Path:
    data = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    return write(folder / name, json.dumps(data).encode())


def shot(side: int = 6, kind: str = "PNG", grey: bool = False) -> bytes:
    """A picture of random pixels."""
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(bytes_of(side, side) if grey else bytes_of(side, side, 3)).save(data, kind)
    return data.getvalue()
