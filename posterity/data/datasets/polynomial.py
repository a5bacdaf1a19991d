"""FedNP's toy regression: three clients see three pieces of one parabola.

y = -x² + 2x + 5 + ε on [-7, -5] (30 samples), [-2, 2] (20) and [4, 8] (50). The paper writes ε ~ N(0, 5), read as a
variance; `noise="sd"` is the authors' programme (standard deviation 5; its intercept is 4, and its x are equally
spaced: `spacing="grid"`). As in the paper, the error is measured on the pooled data of all clients, training rows
included.
"""

from pathlib import Path

import numpy as np
import torch

from posterity.data.pool import DataError, Pool
from posterity.data.rng import stream

NATURAL = True

PIECES = ((-7.0, -5.0, 30), (-2.0, 2.0, 20), (4.0, 8.0, 50))


def load(
    data_dir: Path | None, seed: int, *, noise: str = "variance", intercept: float = 5.0, spacing: str = "random"
) -> Pool:
    if noise not in ("variance", "sd"):
        raise DataError(f'polynomial: noise={noise!r}; expected "variance" (ε has variance 5) or "sd" (sd 5); pick one')
    if spacing not in ("random", "grid"):
        raise DataError(f'polynomial: spacing={spacing!r}; expected "random" or "grid" (equally spaced x); pick one')
    rng = stream(seed, "generate")
    places = np.linspace if spacing == "grid" else rng.uniform
    x = np.concatenate([places(low, high, n) for low, high, n in PIECES])
    error = rng.standard_normal(len(x)) * (5.0 if noise == "sd" else np.sqrt(5.0))
    y = -(x**2) + 2 * x + intercept + error  # (20)
    owner = np.repeat(np.arange(len(PIECES)), [n for *_, n in PIECES])
    return Pool(
        "polynomial",
        torch.from_numpy(x).float()[:, None],
        torch.from_numpy(y).float(),
        classes=0,
        task="regression",
        owner=torch.from_numpy(owner),
        owner_names=tuple(f"x in [{low:g}, {high:g}]" for low, high, _ in PIECES),
        common=torch.arange(len(x)),
        notes=("the common test set is the pooled data of all clients, training rows included (as in the paper)",),
    )
