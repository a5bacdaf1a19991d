"""Fashion-MNIST: 70,000 grey pictures of clothes, 28×28, ten classes.

H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST", 2017 (MIT licence). Read from the four original idx files, which
Debian has as the package dataset-fashion-mnist.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from posterity.data.archive import Array, read_gzip
from posterity.data.files import integers, pictures
from posterity.data.pool import DataError, Pool

FILES = tuple(
    f"fashion_mnist/{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
NATURAL = False
SYSTEM = Path("/usr/share/dataset-fashion-mnist")
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load(data_dir: Path | None, seed: int) -> Pool:
    folder = _folder(data_dir)
    train_x, train_y, test_x, test_y = (_idx(folder / Path(name).name) for name in FILES)
    official = torch.arange(len(train_y) + len(test_y)) >= len(train_y)
    x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
    return Pool("fmnist", pictures(x), integers(y), 10, CLASSES, official_test=official)


def _folder(data_dir: Path | None) -> Path:
    places = [*([data_dir / "fashion_mnist"] if data_dir else []), SYSTEM]
    for place in places:
        if all((place / Path(name).name).is_file() for name in FILES):
            return place
    raise DataError(
        f"dataset fmnist: looked in {' and '.join(map(str, places))}; expected the four idx files "
        f"{', '.join(Path(name).name for name in FILES)}; apt-get install dataset-fashion-mnist, or put them into the "
        "folder fashion_mnist of the data folder (POSTERITY_DATA or data_dir)"
    )


def _idx(path: Path) -> Array:
    """An array of bytes in the idx format: a header with one big-endian number per axis, then the values."""
    data = read_gzip(path)
    axes = data[3] if len(data) > 3 else 0
    shape = tuple(np.frombuffer(data[: 4 + 4 * axes], ">u4", offset=4).tolist()) if len(data) >= 4 + 4 * axes else ()
    if len(shape) != axes or not axes or data[2] != 8 or len(data) != 4 + 4 * axes + math.prod(shape):
        raise DataError(f"{path}: not an idx file of bytes; expected the original Fashion-MNIST file; fetch it again")
    return np.frombuffer(bytearray(data[4 + 4 * axes :]), np.uint8).reshape(shape)
