"""Values minus their mean over the real rows, and their squares: the parts of batch norm that cost.

The mean is taken of differences to one of the rows. So rows that are equal are centred to exactly 0 on every way; a
mean that is off by its last digit would leave noise, which batch norm divides by √eps and a ReLU takes the sign of.

The first is linear, so its derivative is itself; the derivative of the second is one product. Told so, PyTorch makes
half the passes over memory that it makes to differentiate sums and masks one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Centre(torch.autograd.Function):
    """x (B, C, ...) and real (B,) to x minus the mean of the real rows, 0 elsewhere, and the mean (C,)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        origin = _origin(x, real)
        x = x - _channels(origin, x)  # exactly 0 where all rows are equal, and so is their mean
        mean = _sum(x, real) / _count(x, real)
        # not a product: whatever lies behind the mask, even inf, goes no further
        return torch.where(_wide(real, x), x - _channels(mean, x), 0.0), origin + mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, mean_grad: Tensor) -> tuple[Tensor, None]:
        (real,) = ctx.saved_tensors
        shift = (mean_grad - _sum(grad, real)) / _count(grad, real)
        return (grad + _channels(shift, grad)) * _wide(real, grad).to(grad.dtype), None

    @staticmethod
    def jvp(ctx: Any, x: Tensor, _: None) -> tuple[Tensor, Tensor]:
        return centre(x, ctx.saved_tensors[0])


class Squares(torch.autograd.Function):
    """x (B, C, ...) to the sums of its squares (B, C)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _by_row(x * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (2 * grad).reshape([*grad.shape] + [1] * (x.dim() - 2))

    @staticmethod
    def jvp(ctx: Any, x: Tensor) -> Tensor:
        return _by_row(2 * x * ctx.saved_tensors[0])


def squares(x: Tensor) -> Tensor:
    """The sums of the squares of x (B, C, ...) for every row and channel (B, C)."""
    sums: Tensor = Squares.apply(x)  # type: ignore[no-untyped-call]
    return sums


def centre(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, C, ...) minus the mean of the rows that `real` (B,) marks, 0 in the others; and the mean (C,)."""
    pair: tuple[Tensor, Tensor] = Centre.apply(x, real)  # type: ignore[no-untyped-call]
    return pair


def corner(x: Tensor) -> Tensor:
    """One value of every row and channel (B, C)."""
    while x.dim() > 2:
        x = x[..., 0]
    return x


def _origin(x: Tensor, real: Tensor) -> Tensor:
    """One value of every channel (C,), from the first real row; 0 if there is none."""
    place = real.to(torch.uint8).argmax().reshape(1)
    return torch.where(real.any(), corner(x).index_select(0, place)[0], 0.0)


def _count(x: Tensor, real: Tensor) -> Tensor:
    """Real values of a channel, at least 1."""
    return (real.sum() * x[0, 0].numel()).clamp(min=1).to(x.dtype)


def _sum(x: Tensor, real: Tensor) -> Tensor:
    """Sums of the real rows (C,)."""
    return torch.where(real[:, None], _by_row(x), 0.0).sum(0)


def _by_row(x: Tensor) -> Tensor:
    """Sums of every row and channel (B, C)."""
    return x.sum([*range(2, x.dim())]) if x.dim() > 2 else x


def _wide(real: Tensor, x: Tensor) -> Tensor:
    return real.reshape([-1] + [1] * (x.dim() - 1))


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape([-1] + [1] * (x.dim() - 2))


__all__ = ["centre", "corner", "squares"]
