"""A convolution and its two gradients as differentiable functions of stacks of clients, by `nn/kernels`.

The three maps are linear in either operand, and the derivatives of each are the other two: they close under
differentiation, to any order, in reverse and in forward mode. Operands may have leading axes, the clients'. An operand
that all clients share gets one of length 1 (`_lift`), and its gradients are added up again (`_fit`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.nn._grid import WindowGrid


class Convolve(torch.autograd.Function):
    """(x, weight, bias) to images."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, grid: WindowGrid) -> Tensor:
        return _kernels().convolve(x, weight, bias, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.grid = inputs
        ctx.bias = None if bias is None else bias.shape
        _save(ctx, x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), need = ctx.saved_tensors, ctx.needs_input_grad
        for_x = (
            _fit(_call(InputGradient, weight, grad, ctx.grid), x.shape) if need[0] else None
        )  # not for a first layer
        if not (need[1] or need[2]):
            return for_x, None, None, None
        for_weight, for_bias = _call(WeightGradient, x, grad, ctx.grid)
        return for_x, _fit(for_weight, weight.shape), _fit(for_bias, ctx.bias) if need[2] else None, None

    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, _: None) -> Tensor:
        (x0, weight0), grid = ctx.saved_tensors, ctx.grid
        if weight is None and bias is not None:
            weight = torch.zeros_like(weight0)
        parts = [] if x is None else [_call(Convolve, x, weight0, None, grid)]
        parts += [] if weight is None else [_call(Convolve, x0, weight, bias, grid)]
        return _total(parts)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], *operands: Any) -> tuple[Tensor, int]:
        return _call(Convolve, *_lift(axes, operands)), 0


class InputGradient(torch.autograd.Function):
    """(weight, gradient of the images) to the gradient of x."""

    @staticmethod
    def forward(weight: Tensor, grad: Tensor, grid: WindowGrid) -> Tensor:
        return _kernels().spread(weight, grad, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *operands, ctx.grid = inputs
        _save(ctx, *operands)

    @staticmethod
    def backward(ctx: Any, turn: Tensor) -> tuple[Tensor | None, ...]:
        (weight, grad), need = ctx.saved_tensors, ctx.needs_input_grad
        for_weight = _fit(_call(WeightGradient, turn, grad, ctx.grid)[0], weight.shape) if need[0] else None
        return for_weight, _fit(_call(Convolve, turn, weight, None, ctx.grid), grad.shape) if need[1] else None, None

    @staticmethod
    def jvp(ctx: Any, weight: Tensor | None, grad: Tensor | None, _: None) -> Tensor:
        weight0, grad0 = ctx.saved_tensors
        parts = [] if weight is None else [_call(InputGradient, weight, grad0, ctx.grid)]
        parts += [] if grad is None else [_call(InputGradient, weight0, grad, ctx.grid)]
        return _total(parts)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], *operands: Any) -> tuple[Tensor, int]:
        return _call(InputGradient, *_lift(axes, operands)), 0


class WeightGradient(torch.autograd.Function):
    """(x, gradient of the images) to the gradients of weight and bias."""

    @staticmethod
    def forward(x: Tensor, grad: Tensor, grid: WindowGrid) -> tuple[Tensor, Tensor]:
        return _kernels().weigh(x, grad, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *operands, ctx.grid = inputs
        _save(ctx, *operands)

    @staticmethod
    def backward(ctx: Any, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        (x, grad), need = ctx.saved_tensors, ctx.needs_input_grad
        for_x = _fit(_call(InputGradient, weight, grad, ctx.grid), x.shape) if need[0] else None
        return for_x, _fit(_call(Convolve, x, weight, bias, ctx.grid), grad.shape) if need[1] else None, None

    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, grad: Tensor | None, _: None) -> tuple[Tensor, Tensor]:
        x0, grad0 = ctx.saved_tensors
        pairs = [] if grad is None else [_call(WeightGradient, x0, grad, ctx.grid)]
        if x is not None:
            weight, bias = _call(WeightGradient, x, grad0, ctx.grid)
            pairs.append((weight, torch.zeros_like(bias)))  # the bias's gradient does not depend on x
        return _total([pair[0] for pair in pairs]), _total([pair[1] for pair in pairs])

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], *operands: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _call(WeightGradient, *_lift(axes, operands)), (0, 0)


def _call(function: type[torch.autograd.Function], *operands: Any) -> Any:
    return function.apply(*operands)  # type: ignore[no-untyped-call]


def _save(ctx: Any, *tensors: Tensor) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _lift(axes: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Any]:
    """Every tensor with the clients' axis in front, of length 1 if all share it."""
    pairs = list(zip(operands, axes, strict=True))
    return [v if not isinstance(v, Tensor) else v[None] if a is None else v.movedim(a, 0) for v, a in pairs]


def _fit(grad: Tensor, shape: torch.Size) -> Tensor:
    """A gradient added up along the axes that its operand shares."""
    shared = [axis for axis, size in enumerate(shape) if size == 1 and grad.shape[axis] > 1]
    return grad.sum(shared, keepdim=True) if shared else grad


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _kernels() -> Any:

    from posterity.nn.kernels import operators  # Triton is imported here, where it is used

    return operators


__all__ = ["Convolve", "InputGradient", "WeightGradient"]
