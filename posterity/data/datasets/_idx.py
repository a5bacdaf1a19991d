"""The idx format of MNIST and its relatives: a header with one big-endian number per axis, then the values as bytes.

Pictures in one .npz in the form of Keras: x_train, y_train, x_test, y_test.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from posterity.data.archives import Array, check_file, read_file, read_gzip, read_npz, unpack_gzip
from posterity.data.files import integers, join_parts, pictures
from posterity.data.official import File, Form
from posterity.data.pool import DataError, Pool

PACKED = b"\x1f\x8b"  # how a file packed by gzip begins
PARTS = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def idx_forms(names: tuple[str, ...], published: tuple[tuple[int, str], ...] = ()) -> tuple[Form, Form]:
    """The four files as they are published, packed by gzip, and unpacked; `published` has sizes and checksums."""
    known = published or ((0, ""),) * len(names)
    packed = tuple(File(f"{name}.gz", *facts) for name, facts in zip(names, known, strict=True))
    return (
        Form("idx", "idx files, packed by gzip", packed),
        Form("idx", "idx files, unpacked", tuple(File(name) for name in names)),
    )


def read_idx(path: Path) -> Array:
    """An array of bytes from an idx file, packed by gzip or not."""
    check_file(path, "an idx file")
    return parse_idx(read_gzip(path) if path.suffix == ".gz" else read_file(path), str(path))


def unpack_idx(data: bytes, name: str) -> Array:
    """An array of bytes from an idx file inside an archive, packed by gzip or not."""
    return parse_idx(unpack_gzip(data, name) if data.startswith(PACKED) else data, name)


def parse_idx(data: bytes, name: str) -> Array:
    """The array that an idx file holds."""
    axes = data[3] if len(data) > 3 else 0
    start = 4 + 4 * axes
    if len(data) < start or not axes or data[:3] != b"\0\0\x08":
        raise DataError(
            f"{name}: not an idx file of bytes (it begins with {data[:4].hex(' ') or 'nothing'}); expected 00 00 08 "
            "and the number of axes; fetch the original file again"
        )
    shape = tuple(np.frombuffer(data[:start], ">u4", offset=4).tolist())
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"{name}: not an idx file of bytes, or damaged: it claims {math.prod(shape):,} values {shape} and has "
            f"{len(data) - start:,}; expected as many as it claims; fetch the original file again"
        )
    return np.frombuffer(bytearray(data[start:]), np.uint8).reshape(shape)


def idx_pool(
    name: str,
    arrays: tuple[Array, ...],
    where: str,
    class_names: tuple[str, ...],
    published: tuple[int, int],
    first: int = 0,
) -> Pool:
    """A pool of training pictures, training labels, test pictures and test labels; labels count from `first`."""
    train_x, train_y, test_x, test_y = arrays
    for kind, x, y in (("training", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 3 or y.shape != x.shape[:1] or x.shape[1:] != train_x.shape[1:]:
            raise DataError(
                f"{where}: {kind} pictures {x.shape} and {kind} labels {y.shape}; expected as many labels as pictures "
                "of one size; are they files of two datasets? fetch them again"
            )
    x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
    check_labels(where, y, first, len(class_names))
    note = (
        f"{name}: {len(train_y):,} + {len(test_y):,} pictures; the official files hold "
        f"{published[0]:,} + {published[1]:,}"
    )
    return Pool(
        name,
        pictures(x),
        integers(y) - first,
        len(class_names),
        class_names,
        official_test=torch.arange(len(y)) >= len(train_y),
        notes=(note,) * ((len(train_y), len(test_y)) != published),
        published=sum(published),
    )


def check_labels(where: str, y: Array, first: int, classes: int) -> None:
    """Refuse labels that no class has."""
    if not len(y):
        raise DataError(f"{where}: no rows at all; expected labelled pictures; fetch the files again")
    low, high = int(y.min()), int(y.max())
    if low < first or high >= first + classes:
        raise DataError(
            f"{where}: labels from {low} to {high}; expected {first} to {first + classes - 1}; is it another dataset, "
            "or damaged? fetch it again"
        )


def keras_pool(name: str, path: Path, class_names: tuple[str, ...], published: tuple[int, int]) -> Pool:
    """A pool from a file of this form."""
    x, y, official = keras_arrays(path, read_npz(path))
    return idx_pool(name, (x[~official], y[~official], x[official], y[official]), str(path), class_names, published)


def keras_arrays(path: Path, stored: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Grey pictures of bytes, labels, and which are for testing."""
    x, y, official = join_parts(path, stored)
    if x.dtype != np.uint8 or x.ndim != 3:
        raise DataError(f"{path}: x_train is {x.dtype} {x.shape[1:]}; expected bytes (28, 28); fetch the original")
    return x, y, official
