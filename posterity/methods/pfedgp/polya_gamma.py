"""The Pólya-Gamma distribution PG(1, c) of pFedGP's augmentation (c): its mean, and draws that are functions of a key.

PG(1, c) is the law of 1/(2π²) Σ_k E_k / ((k − ½)² + c²/4π²), k = 1, 2, …, with independent standard exponentials E_k
(Polson, Scott and Windle, "Bayesian inference for logistic models using Pólya-Gamma latent variables", 2013).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.core import bits

TERMS = 4  # exponentials of a draw: three of the sum, and one for all that follow
SMALL = 0.3  # below it, the first terms of the series at 0: the closed forms cancel


def mean_of(c: Tensor) -> Tensor:
    """E ω = tanh(c/2) / 2c, 1/4 at 0."""
    size = c.abs()
    near, far = size.clamp(max=SMALL) ** 2, size.clamp(min=SMALL)
    series = 1 / 4 - near / 48 + near**2 / 480 - 17 * near**3 / 80640
    return torch.where(size < SMALL, series, torch.tanh(far / 2) / (2 * far))


def variance_of(c: Tensor) -> Tensor:
    """Var ω = (sinh c − c) / (4c³ cosh²(c/2)), 1/24 at 0."""
    size = c.abs()
    near, far = size.clamp(max=SMALL) ** 2, size.clamp(min=SMALL)
    series = 1 / 24 - near / 120 + 17 * near**2 / 13440 - 31 * near**3 / 181440
    slope = torch.tanh(far / 2)
    return torch.where(size < SMALL, series, (2 * slope - far * (1 - slope**2)) / (4 * far**3))


def exponential(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard exponentials; number i depends on the key and on i alone."""
    count = math.prod(shape)
    pair = torch.stack(bits(key, (count + 1) // 2), -1).reshape(-1)[:count]
    return -torch.log((pair.to(dtype) + 1) * 2.0**-32).reshape(tuple(shape))  # of 2^-32 … 1: finite


def from_exponentials(lots: Tensor, c: Tensor) -> Tensor:
    """PG(1, c) (...) from exponentials (..., TERMS): terms of the sum, and a last one for the rest.

    The rest is positive and has the right mean and variance, so the draw has both exactly.
    """
    place = torch.arange(TERMS - 1, dtype=c.dtype, device=c.device) + 0.5
    rate = 1 / (2 * math.pi**2 * place**2 + 0.5 * c[..., None] ** 2)
    mean = (mean_of(c) - rate.sum(-1)).clamp(min=0)
    deviation = (variance_of(c) - (rate**2).sum(-1)).clamp(min=0).sqrt().minimum(mean)
    return (rate * lots[..., :-1]).sum(-1) + mean + deviation * (lots[..., -1] - 1)
