"""FEMNIST: handwritten digits and letters by writer, 28×28, 62 classes, as LEAF prepares them.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, from EMNIST. A client is a writer. Read from LEAF's
JSON files (run its data/femnist/preprocess.sh); a picture is 784 numbers from 0 (ink) to 1 (paper).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.data.archives import Array, demand
from posterity.data.datasets._leaf import leaf_forms, leaf_pool
from posterity.data.official import DataSource, locate_form
from posterity.data.pool import Pool

NATURAL = True
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SOURCE = DataSource(
    "https://github.com/TalwalkarLab/leaf", ("femnist/data", "femnist", "leaf/data/femnist/data"), leaf_forms()
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("femnist", SOURCE, data_dir)
    return leaf_pool("femnist", [*found.paths], _converted, _finished, CLASSES)


def _converted(x: list[Any]) -> Array:
    pixels = np.asarray(x, dtype=np.float32)
    fits = pixels.shape == (len(x), 784) and pixels.min() >= 0 and pixels.max() <= 1  # also refuses nan
    demand(bool(fits), "pictures that are not 784 numbers from 0 to 1")
    return pixels


def _finished(x: Array) -> Tensor:
    return torch.from_numpy(x).mul_(2.0).sub_(1.0).reshape(-1, 1, 28, 28)
