"""FedMAP's synthetic binary problem: a ball inside a sphere, seen through another affine map by every client.

Features live in R^30; only a 4-dimensional subspace B (the same for all clients) matters. Class 0 is N(0, 2 I) in it,
class 1 lies around the sphere of radius 8 (radius N(8, 2)); the other 26 directions are noise. Client i then sees
A_i x + b_i with A_i standard normal and b_i = 5 (i + 1) times standard normal. FedMAP, App. B.1, with its misprints
put right: the projection is Bᵀx and the variance of the radius is a scalar. `preset="code"` has the nuisance variance
9 of the authors' programme. Each client standardises its features by its own training rows.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from posterity.data.pool import DataError, Pool
from posterity.data.rng import stream

NATURAL = True

FEATURES, INTRINSIC, RADIUS, VARIANCE = 30, 4, 8.0, 2.0
SKEWS = ("feature", "quantity", "label")


def load(
    data_dir: Path | None,
    seed: int,
    *,
    skew: str = "feature",
    clients: int = 10,
    samples: int = 2000,
    preset: str = "paper",
    outlier: int = -1,
) -> Pool:
    """Quantity skew: the second half of the clients has a quarter of the samples; label skew: it has 85 % class 0.

    The training labels of client `outlier` are shuffled (-1: of none), what it holds out keeps its labels.
    """
    _check(skew, preset, clients, samples, outlier)
    basis = rotation(stream(seed, "generate"))
    xs, ys = [], []
    for k in range(clients):
        rng = stream(seed, "generate", k)
        second = k >= clients / 2
        n = samples // 4 if skew == "quantity" and second else samples
        zeros = round(n * (0.85 if skew == "label" and second else 0.5))
        y = rng.permutation(np.repeat([0, 1], [zeros, n - zeros]))
        x = draw(y, rng, 9.0 if preset == "code" else VARIANCE) @ basis.T
        spread = rng.standard_normal((FEATURES, FEATURES))
        xs.append(x @ spread.T + rng.standard_normal(FEATURES) * (k + 1) * 5)
        ys.append(y)
    owner = np.repeat(np.arange(clients), [len(y) for y in ys])
    return Pool(
        "synthetic",
        torch.from_numpy(np.concatenate(xs)).float(),
        torch.from_numpy(np.concatenate(ys)),
        2,
        ("ball", "sphere"),
        owner=torch.from_numpy(owner),
        owner_names=tuple(f"client {k}" for k in range(clients)),
        scale="client",
        outlier=None if outlier < 0 else outlier,
    )


def _check(skew: str, preset: str, clients: int, samples: int, outlier: int) -> None:
    if skew not in SKEWS or preset not in ("paper", "code") or clients < 1 or samples < 8:
        given = f"synthetic: skew={skew!r}, preset={preset!r}, clients={clients}, samples={samples}"
        wanted = f"skew one of {', '.join(SKEWS)}, preset paper or code, at least 1 client and 8 samples"
        raise DataError(f"{given}; expected {wanted}; change the options")
    if not -1 <= outlier < clients:
        raise DataError(f"synthetic: outlier={outlier}; expected a client from 0 to {clients - 1}, or -1 for none")


def rotation(rng: Generator) -> NDArray[np.float64]:
    """An orthonormal basis of R^30 (columns); its first four span the subspace that carries the label."""
    q, r = np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))
    return q * np.sign(np.diag(r))  # the sign makes the draw uniform


def draw(y: NDArray[np.int64], rng: Generator, nuisance_var: float) -> NDArray[np.float64]:
    """Samples in the coordinates of the basis: four intrinsic ones, then the nuisance (n, 30)."""
    inner = rng.standard_normal((len(y), INTRINSIC))
    direction = inner / np.linalg.norm(inner, axis=1, keepdims=True)
    radius = RADIUS + np.sqrt(VARIANCE) * rng.standard_normal((len(y), 1))
    intrinsic = np.where(y[:, None] == 1, direction * radius, inner * np.sqrt(VARIANCE))
    nuisance = rng.standard_normal((len(y), FEATURES - INTRINSIC)) * np.sqrt(nuisance_var)
    return np.concatenate([intrinsic, nuisance], axis=1)
