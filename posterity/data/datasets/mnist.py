"""MNIST: 70,000 handwritten digits, 28×28, ten classes.

Y. LeCun, C. Cortes, C. Burges; 60,000 training and 10,000 test digits in the official order. Read from the four
original idx files, packed or not, from the `mnist.npz` that Keras offers, or from a smaller file of the same name.
"""

from pathlib import Path

import numpy as np

from posterity.data.archives import Array, check_arrays, read_npz, reading, unpack_xz
from posterity.data.datasets._idx import PARTS, idx_forms, idx_pool, read_idx
from posterity.data.files import join_parts
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = False
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
        form("npz", f"Keras' file ({KERAS}), or a compact one of ours", "mnist.npz"),
        *idx_forms(PARTS, PUBLISHED),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("mnist", SOURCE, data_dir)
    where = found.paths[0]
    if found.form.key == "idx":
        arrays, where = [read_idx(path) for path in found.paths], where.parent
    else:
        arrays = _stored(where)
    return idx_pool("mnist", arrays, where, "0123456789", 70_000)


def _stored(path: Path) -> list[Array]:
    """The four arrays of either kind of .npz file."""
    stored = read_npz(path)
    if "x_xz" not in stored:  # as Keras offers it
        x, y, test = join_parts(path, stored)
        return [x[~test], y[~test], x[test], y[test]]
    check_arrays(path, stored, ("y",))
    y = stored["y"]
    with reading(f"{path}, x_xz", f"{len(y)} digits; copy it again"):
        pixels = unpack_xz(stored["x_xz"].tobytes(), len(y) * 28 * 28)
    x = np.frombuffer(bytearray(pixels), np.uint8).reshape(len(y), 28, 28)
    return [x[:60_000], y[:60_000], x[60_000:], y[60_000:]]
