"""MNIST: 70,000 handwritten digits, 28×28, ten classes.

Y. LeCun, C. Cortes, C. Burges; 60,000 training and 10,000 test digits in the official order. Read from
our packed file, or from the `mnist.npz` that Keras offers (x_train, y_train, x_test, y_test).
"""

from __future__ import annotations

from lzma import LZMAError
from pathlib import Path

import numpy as np
import torch

from posterity.data.archive import Array, read_npz, unpack_xz
from posterity.data.files import integers, join_parts, locate, pictures
from posterity.data.pool import DataError, Pool

FILES = ("mnist/mnist.npz",)
NATURAL = False


def load(data_dir: Path | None, seed: int) -> Pool:
    path = locate(data_dir, FILES[0], "mnist")
    stored = read_npz(path)
    if "x_xz" not in stored:  # as Keras offers it
        x, y, official = join_parts(path, stored)
        if x.dtype != np.uint8 or x.ndim != 3:
            raise DataError(f"{path}: x_train is {x.dtype} {x.shape[1:]}; expected bytes (28, 28); fetch the original")
    else:
        y = stored["y"]
        x = _unpacked(path, stored["x_xz"].tobytes(), len(y))
        official = np.arange(len(y)) >= 60_000
    test = torch.from_numpy(official)
    return Pool("mnist", pictures(x), integers(y), 10, tuple("0123456789"), official_test=test)


def _unpacked(path: Path, data: bytes, count: int) -> Array:
    try:
        return np.frombuffer(bytearray(unpack_xz(data, count * 28 * 28)), np.uint8).reshape(count, 28, 28)
    except (ValueError, LZMAError) as error:
        raise DataError(f"{path}: x_xz cannot be unpacked ({error}); expected {count} digits; copy it again") from None
