"""MNIST: 70,000 handwritten digits, 28×28, ten classes.

Y. LeCun, C. Cortes, C. Burges; 60,000 training and 10,000 test digits in the official order. Read from the four
original idx files, packed or not, from the `mnist.npz` that Keras offers, or from a smaller file of the same name.
"""

from __future__ import annotations

from lzma import LZMAError
from pathlib import Path

import numpy as np

from posterity.data.archives import Array, read_npz, unpack_xz
from posterity.data.datasets._idx import PARTS, idx_forms, idx_pool, keras_arrays, read_idx
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import DataError, Pool

FILES = ("mnist/mnist.npz",)
NATURAL = False
CLASSES = tuple("0123456789")
PUBLISHED = (
    (9_912_422, "md5 f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    (28_881, "md5 d53e105ee54ea40749a09fcbcd1e9432"),
    (1_648_877, "md5 9fb629c4189551a2d022fa330f9573f3"),
    (4_542, "md5 ec29112dd5afa0611ce80d1b7f02629c"),
)
KERAS = "11,490,434 bytes, sha256 731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
SOURCE = DataSource(
    "http://yann.lecun.com/exdb/mnist/ (a mirror: https://ossci-datasets.s3.amazonaws.com/mnist/)",
    ("mnist", "MNIST/raw", "MNIST"),
    (
        Form("npz", f"Keras' file ({KERAS}), or a compact one of ours", (File("mnist.npz"),)),
        *idx_forms(PARTS, PUBLISHED),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("mnist", SOURCE, data_dir)
    where = found.paths[0]
    if found.form.key == "idx":
        arrays, where = tuple(read_idx(path) for path in found.paths), where.parent
    else:
        x, y, official = _stored(where)
        arrays = (x[~official], y[~official], x[official], y[official])
    return idx_pool("mnist", arrays, str(where), CLASSES, (60_000, 10_000))


def _stored(path: Path) -> tuple[Array, Array, Array]:
    """Digits, labels and which are for testing, from either kind of .npz file."""
    stored = read_npz(path)
    if "x_xz" not in stored:  # as Keras offers it
        return keras_arrays(path, stored)
    if "y" not in stored:
        raise DataError(f"{path}: arrays {', '.join(stored)}; expected also y; fetch the right file")
    y = stored["y"]
    return _unpacked(path, stored["x_xz"].tobytes(), len(y)), y, np.arange(len(y)) >= 60_000


def _unpacked(path: Path, data: bytes, count: int) -> Array:
    try:
        return np.frombuffer(bytearray(unpack_xz(data, count * 28 * 28)), np.uint8).reshape(count, 28, 28)
    except (ValueError, LZMAError) as error:
        raise DataError(f"{path}: x_xz cannot be unpacked ({error}); expected {count} digits; copy it again") from None
