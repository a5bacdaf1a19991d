"""Cubic polynomial of a scalar input: the features x, x², x³ and a linear layer on them."""

from collections import OrderedDict
from math import prod

import torch
from torch import Tensor, nn


class Powers(nn.Module):
    """x/s, (x/s)², (x/s)³: with s near the largest |x| the three have the same size, and one learning rate serves."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1) or (B,) to (B, 3)."""
        x = x.reshape(x.shape[0], 1) / self.scale
        return torch.cat([x, x**2, x**3], 1)


def cubic(
    shape: tuple[int, ...],
    outputs: int = 1,
    *,
    scale: float = 1.0,  # inputs are divided by it
    bias: bool = True,
    start: float | None = None,  # first coefficients are uniform on ±start (FedNP's programme: 0.05); None: PyTorch's
) -> nn.Module:
    """Cubic polynomial of a scalar input: the features x, x², x³ and a linear layer on them.

    A model that is linear in its parameters, so posteriors are known in closed form.
    """
    if prod(shape) != 1:
        raise ValueError(f"cubic takes one number per sample, not an input of shape {shape}.")
    if scale <= 0:
        raise ValueError(f"scale divides the input and must be positive, not {scale}.")
    if start is not None and not start >= 0:
        raise ValueError(f"start bounds the first coefficients and must be at least 0, not {start}.")
    head = nn.Linear(3, outputs, bias=bias)
    if start is not None:
        for leaf in head.parameters():
            nn.init.uniform_(leaf, -start, start)
    return nn.Sequential(OrderedDict(base=Powers(scale), head=head))
