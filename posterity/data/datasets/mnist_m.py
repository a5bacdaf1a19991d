"""MNIST-M: 2,000 digits blended over colour photographs, 32×32.

Y. Ganin et al., "Domain-Adversarial Training of Neural Networks", 2016; 200 of each digit from its test set.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, locate, pictures, unsheet
from posterity.data.pool import Pool

FILES = ("mnist_m/mnist_m_2k.npz",)
NATURAL = False


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate(data_dir, FILES[0], "mnist_m"), "labels", "offsets", "webp")
    y = integers(stored["labels"])
    x = pictures(unsheet(stored["webp"], stored["offsets"], 32, len(y)))
    return Pool("mnist_m", x, y, 10, tuple("0123456789"))
