"""The one place where a network's output meets a label: training, scoring and log-weights all call these."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.network import Network, Params

if TYPE_CHECKING:  # whose `Method` predicts with what is here
    from posterity.core.protocol import Batch, Here

NOISE = 1.0  # variance of a regression target around a point prediction: ½(f(x) - y)² is then its negative log-density


def pointwise(output: Tensor, y: Tensor, model: Network) -> Tensor:
    """Negative log-likelihood of each sample (B,), up to a constant for regression."""
    if model.task == "regression":
        return 0.5 * (output - y) ** 2 / NOISE
    return -F.log_softmax(output, -1).gather(1, y[:, None])[:, 0]  # `cross_entropy`, which is Python under `vmap`


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real rows; 0 when there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def fit(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
    """Mean negative log-likelihood of a batch in training mode, and the network's updated buffers."""
    output, buffers = here.model(params, batch.x, mask=batch.layer_mask, train=True, key=here.key)
    return masked_mean(pointwise(output, batch.y, here.model), batch.mask), buffers


def fit_head(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
    """As `fit`, with the base in evaluation mode: nothing before the head moves, running statistics included."""
    z, _ = here.model.features(params, batch.x)
    output = here.model.classify(params, z, mask=batch.layer_mask, train=True, key=here.key)
    return masked_mean(pointwise(output, batch.y, here.model), batch.mask), {}


def log_likelihood(params: Params, batch: Batch, here: Here) -> Tensor:
    """Sum of the log-likelihood over the real rows, in evaluation mode; densities with their constants.

    For regression that is −½ log 2πs a sample, with the s of `log_predictive`: clients of other sizes have another sum.
    """
    output, _ = here.model(params, batch.x)
    constant = 0.5 * math.log(2 * math.pi * NOISE) if here.model.task == "regression" else 0.0
    return -((pointwise(output, batch.y, here.model) + constant) * batch.mask).sum()


def log_predictive(params: Params, x: Tensor, here: Here) -> Tensor:
    """Log-probabilities (B, classes); for regression the mean and variance of a Gaussian (B, 2)."""
    output, _ = here.model(params, x)
    if here.model.task == "regression":
        return torch.stack((output, torch.full_like(output, NOISE)), -1)
    return F.log_softmax(output, -1)


def mixture(each: Tensor, task: str) -> Tensor:
    """The average of several predictions (draws, B, ...): probabilities, or the moments of a mixture of Gaussians."""
    if task == "regression":
        mean = each[..., 0].mean(0)
        return torch.stack((mean, (each[..., 1] + (each[..., 0] - mean) ** 2).mean(0)), -1)
    return torch.log_softmax(torch.logsumexp(each, 0), -1)


def one_hot(y: Tensor, classes: int, mask: Tensor) -> Tensor:
    """Indicators (B, classes) of the real rows. (`F.one_hot` fails under `grad` inside `vmap`.)"""
    return (y[:, None] == torch.arange(classes, device=y.device)).to(mask.dtype) * mask[:, None]
