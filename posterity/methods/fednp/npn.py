"""The natural-parameter network (NPN) of (17), from a Gaussian over z to one over the classifier: (27), (28), (18).

Layers take and return the mean and variance of every unit. The moments of a sigmoid are those of `moments.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.methods.fednp.moments import constants, log_power

FLOOR = 1e-6  # least variance after a sigmoid


def npn_linear(
    mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor | None = None, spread: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of xW + b for x ~ N(mean, variance) and W ~ N(weight, spread), (in, out); None means 0."""
    out, var = mean @ weight, variance @ (weight * weight)
    if spread is not None:
        var = var + variance @ spread + (mean * mean) @ spread
    return (out if bias is None else out + bias), var


def npn_sigmoid(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of σ(o) for o ~ N(mean, variance)."""
    out = torch.exp(log_power(mean, variance, *constants(1)))  # (27)
    square = torch.exp(log_power(mean, variance, *constants(2)))  # (28)
    return out, (square - out * out).clamp(min=FLOOR)


def kl_each(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: float | Tensor) -> Tensor:
    """KL(N(mean, variance) ‖ N(prior_mean, prior_variance)) of every element."""
    ratio = variance / prior_variance
    return 0.5 * (ratio - 1 - torch.log(ratio) + (mean - prior_mean) ** 2 / prior_variance)
