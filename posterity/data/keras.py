"""Pictures in one .npz in the form of Keras: x_train, y_train, x_test, y_test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posterity.data.archive import Array, read_npz
from posterity.data.files import join_parts
from posterity.data.idx import idx_pool
from posterity.data.pool import DataError, Pool


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
