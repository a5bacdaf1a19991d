"""The idx format of MNIST and its relatives: a header with one big-endian number per axis, then the values as bytes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from posterity.data.archives import Array, demand, read_file, reading, unpack_gzip
from posterity.data.files import check_labels, labelled
from posterity.data.official import File, Form, form
from posterity.data.pool import DataError, Pool

PACKED = b"\x1f\x8b"  # how a file packed by gzip begins
PARTS = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def idx_forms(names: tuple[str, ...], published: tuple[tuple[int, str], ...] = ()) -> tuple[Form, Form]:
    """The four files as they are published, packed by gzip, and unpacked; `published` has sizes and checksums."""
    known = published or ((0, ""),) * len(names)
    packed = [File(f"{name}.gz", *facts) for name, facts in zip(names, known, strict=True)]
    return form("idx", "idx files, packed by gzip", *packed), form("idx", "idx files, unpacked", *names)


def read_idx(path: Path) -> Array:
    """An array of bytes from an idx file, packed by gzip or not."""
    return unpack_idx(read_file(path), str(path))


def unpack_idx(data: bytes, name: str) -> Array:
    """The array that an idx file holds, packed by gzip or not."""
    data = unpack_gzip(data, name) if data.startswith(PACKED) else data
    with reading(name, "an idx file of bytes (00 00 08 and the number of axes, then sizes and values); fetch it again"):
        fits = data[:3] == b"\0\0\x08" and data[3] > 0
        demand(fits, f"it begins with {data[:4].hex(' ') or 'nothing'}")
        start = 4 + 4 * data[3]
        shape = np.frombuffer(data[:start], ">u4", offset=4, count=data[3]).tolist()
        return np.frombuffer(bytearray(data[start:]), np.uint8).reshape(shape)


def idx_pool(
    name: str, arrays: Sequence[Array], where: object, classes: Iterable[str], published: int, first: int = 0
) -> Pool:
    """A pool of training pictures, training labels, test pictures and test labels; labels count from `first`."""
    train_x, train_y, test_x, test_y = arrays
    for kind, x, y in (("training", train_x, train_y), ("test", test_x, test_y)):
        if x.dtype != np.uint8 or x.ndim != 3 or y.shape != x.shape[:1] or x.shape[1:] != train_x.shape[1:]:
            given = f"{kind} pictures {x.dtype} {x.shape} and {kind} labels {y.shape}"
            raise DataError(
                f"{where}: {given}; expected as many labels as pictures of one size, bytes; fetch them again"
            )
    x, y, kinds = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y]), tuple(classes)
    check_labels(where, y, first, len(kinds))
    test = np.arange(len(y)) >= len(train_y)
    return labelled(name, x, y.astype(np.int64) - first, kinds, test=test, published=published)
