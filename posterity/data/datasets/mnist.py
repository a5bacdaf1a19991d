"""MNIST: 70,000 handwritten digits, 28×28, ten classes.

Y. LeCun, C. Cortes, C. Burges; 60,000 training and 10,000 test digits in the official order.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import torch

from posterity.data.files import integers, locate, pictures, read_npz
from posterity.data.pool import Pool

FILES = ("mnist/mnist.npz",)
NATURAL = False


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate(data_dir, FILES[0], "mnist"))
    x = np.frombuffer(bytearray(lzma.decompress(stored["x_xz"].tobytes())), np.uint8).reshape(-1, 28, 28)
    official = torch.arange(len(x)) >= 60_000
    return Pool("mnist", pictures(x), integers(stored["y"]), 10, tuple("0123456789"), official_test=official)
