"""Digits-Five: digits of five domains, 32×32 in colour; a client is a domain.

X. Peng et al., "Moment Matching for Multi-Source Domain Adaptation", ICCV 2019: MNIST, MNIST-M (Y. Ganin et al. 2016),
SVHN (Y. Netzer et al. 2011), synthetic digits (Y. Ganin and V. Lempitsky 2015) and USPS (J. Hull 1994). Read from the
.mat files of that paper (by SciPy). Pictures of 28×28 are enlarged, grey ones repeated over the three channels.
"""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.data.archives import Array, check_arrays, check_file, check_size, demand, reading
from posterity.data.files import check_labels, labelled, pictures
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import DataError, Pool

MATS = ("mnist_data", "mnistm_with_label", "svhn_train_32x32", "svhn_test_32x32", "syn_number", "usps_28x28")
NATURAL = True
DOMAINS = ("mnist", "mnistm", "svhn", "syn", "usps")
SIDE = 32
SOURCE = DataSource(
    "https://github.com/VisionLearningGroup/VisionLearningGroup.github.io/tree/master/M3SDA",
    ("digits5", "Digit-Five", "DigitFive", "Digits-Five"),
    (form("mat", "the paper's .mat files", *(f"{name}.mat" for name in MATS)),),
)
Part = tuple[Array, Array, Array]  # pictures (n, height, width, channels) or (n, height, width), labels, test or not


def load(data_dir: Path | None, seed: int) -> Pool:
    paths = locate_form("digits5", SOURCE, data_dir).paths
    parts = _from_mat(*paths)
    x = torch.cat([_shaped(shots) for shots, _, _ in parts])
    y, test = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    check_labels(paths[0].parent, y, 0, 10)
    owner = np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts])
    notes = ("digits5: pictures of 28×28 are enlarged to 32×32",)
    return labelled("digits5", x, y, "0123456789", owner=owner, people=DOMAINS, test=test, notes=notes)


def _from_mat(mnist: Path, mnistm: Path, svhn: Path, svhn_test: Path, syn: Path, usps: Path) -> list[Part]:
    street = [*read_mat(svhn, "X", "y"), *read_mat(svhn_test, "X", "y")]
    return [
        _part(mnist, *read_mat(mnist, "train_32", "test_32", "label_train", "label_test")),
        _part(mnistm, *read_mat(mnistm, "train", "test", "label_train", "label_test")),
        _part(svhn, *(np.moveaxis(x, -1, 0) for x in street[::2]), *street[1::2]),
        _part(syn, *read_mat(syn, "train_data", "test_data", "train_label", "test_label")),
        _part(usps, *_cells(usps)),
    ]


def read_mat(path: Path, *names: str) -> list[Array]:
    """The arrays of these names in a .mat file."""
    try:
        from scipy import io
    except ImportError:
        raise DataError(f"{path}: .mat files need SciPy, which is not installed; pip install scipy") from None
    check_file(path, "a .mat file")
    with reading(path, "a whole .mat file of version 5 to 7; fetch it again, or save it with -v7"):
        try:
            check_size(path, sum(8 * math.prod(shape) for _, shape, _ in io.whosmat(path)))
            found = io.loadmat(path, variable_names=names)
        except io.matlab.MatReadError as error:
            raise ValueError(str(error)) from None
    check_arrays(path, found, names)
    return [found[name] for name in names]


def _cells(path: Path) -> list[Array]:
    """USPS: a table with training pictures and labels in the first row, those for testing in the second."""
    (table,) = read_mat(path, "dataset")
    if table.shape != (2, 2) or table.dtype != object:
        raise DataError(f"{path}: dataset is no table of 2×2 cells; expected one; fetch the original file")
    shots = [np.moveaxis(x, 1, -1) if x.ndim == 4 and x.shape[1] == 1 else x for x in table[:, 0]]
    return [*shots, *table[:, 1]]


def _part(path: Path, *arrays: Array) -> Part:
    """One domain of pictures and labels for training and testing; labels may be one-hot, and 10 stands for 0."""
    with reading(path, "pictures of one size from 0 to 255, and as many labels; fetch the original file"):
        train, test, train_y, test_y = arrays
        y = [np.argmax(v, 1) if v.ndim == 2 and v.shape[1] > 1 else v.reshape(-1) for v in (train_y, test_y)]
        x, both = [_bytes(train), _bytes(test)], np.concatenate(y).astype(np.int64)
        fits = x[0].ndim == 3 or (x[0].ndim == 4 and x[0].shape[3] in (1, 3))
        demand(
            fits and [*map(len, x)] == [*map(len, y)], f"pictures {train.shape} and {test.shape}, {len(both)} labels"
        )
        both[both == 10] = 0
        return np.concatenate(x), both, np.arange(len(both)) >= len(y[0])


def _bytes(x: Array) -> Array:
    """Pictures as bytes, whether they are stored from 0 to 255 or from 0 to 1, as squares or as rows of pixels."""
    side = math.isqrt(x.shape[1]) if x.ndim == 2 else 0
    if side and side * side == x.shape[1]:
        x = x.reshape(len(x), side, side)
    if x.dtype == np.uint8:
        return x
    scale = 255 if x.dtype.kind == "f" and x.max() <= 1 else 1
    demand(x.min() >= 0 and x.max() * scale <= 255, f"values from {x.min()} to {x.max()}")
    return np.rint(x * scale).astype(np.uint8)


def _shaped(x: Array) -> Tensor:
    """Pictures (n, 3, 32, 32) in [-1, 1]."""
    shots = pictures(x)
    if shots.shape[2:] != (SIDE, SIDE):
        shots = F.interpolate(shots, size=[SIDE, SIDE], mode="bilinear", antialias=True)
    return shots.expand(-1, 3, -1, -1)
