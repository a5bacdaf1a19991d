"""What a network's output says about a label: likelihoods of single samples, and averages of predictions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.network import Network

NOISE = 1.0  # variance of a regression target around a point prediction: ½(f(x) - y)² is then its negative log-density


def pointwise(output: Tensor, y: Tensor, model: Network) -> Tensor:
    """Negative log-likelihood of each sample (B,), up to a constant for regression."""
    if model.task == "regression":
        return 0.5 * (output - y) ** 2 / NOISE
    return -F.log_softmax(output, -1).gather(1, y[:, None])[:, 0]  # `cross_entropy`, which is Python under `vmap`


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real rows; 0 when there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def mixture(each: Tensor, task: str) -> Tensor:
    """The average of several predictions (draws, B, ...): probabilities, or the moments of a mixture of Gaussians."""
    if task == "regression":
        mean = each[..., 0].mean(0)
        return torch.stack((mean, (each[..., 1] + (each[..., 0] - mean) ** 2).mean(0)), -1)
    return torch.log_softmax(torch.logsumexp(each, 0), -1)


def one_hot(y: Tensor, classes: int, mask: Tensor) -> Tensor:
    """Indicators (B, classes) of the real rows. (`F.one_hot` fails under `grad` inside `vmap`.)"""
    return (y[:, None] == torch.arange(classes, device=y.device)).to(mask.dtype) * mask[:, None]
