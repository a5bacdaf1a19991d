"""The kernels of convolution and pooling as operators that PyTorch knows by name.

A tracer follows functions on tensors without content, on which no kernel can be started. It writes down the operator
instead, and asks here for the shape and layout of its result.
"""

import torch
from torch import Tensor, library

from posterity.nn.kernels import _convolution, _pooling
from posterity.nn.kernels.grid import WindowGrid


@library.custom_op("posterity::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grid: list[int]) -> Tensor:
    return _convolution.convolve(x, weight, bias, WindowGrid.of(grid))


@convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, grid: list[int]) -> Tensor:
    lead = torch.broadcast_shapes(x.shape[:-4], weight.shape[:-4], () if bias is None else bias.shape[:-1])
    return _last(x, lead, (grid[0], weight.shape[-4], *WindowGrid.of(grid).places))


@library.custom_op("posterity::spread", mutates_args=())
def spread(weight: Tensor, grad: Tensor, grid: list[int]) -> Tensor:
    return _convolution.spread(weight, grad, WindowGrid.of(grid))


@spread.register_fake
def _(weight: Tensor, grad: Tensor, grid: list[int]) -> Tensor:
    return _last(grad, torch.broadcast_shapes(weight.shape[:-4], grad.shape[:-4]), tuple(grid[:4]))


@library.custom_op("posterity::weigh", mutates_args=())
def weigh(x: Tensor, grad: Tensor, grid: list[int]) -> tuple[Tensor, Tensor]:
    return _convolution.weigh(x, grad, WindowGrid.of(grid))


@weigh.register_fake
def _(x: Tensor, grad: Tensor, grid: list[int]) -> tuple[Tensor, Tensor]:
    lead, outputs = torch.broadcast_shapes(x.shape[:-4], grad.shape[:-4]), grad.shape[-3]
    return x.new_empty(*lead, outputs, grid[1], grid[4], grid[5]), x.new_empty(*lead, outputs)


pool = library.custom_op("posterity::pool", _pooling.pool, mutates_args=())
take = library.custom_op("posterity::take", _pooling.take, mutates_args=())
put = library.custom_op("posterity::put", _pooling.put, mutates_args=())


@pool.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    out = _last(x, x.shape[:-3], (x.shape[-3], x.shape[-2] // 2, x.shape[-1] // 2))
    return out, torch.empty_like(out, dtype=torch.int8)


@take.register_fake
def _(x: Tensor, place: Tensor) -> Tensor:
    return _last(x, x.shape[:-3], (x.shape[-3], x.shape[-2] // 2, x.shape[-1] // 2))


@put.register_fake
def _(y: Tensor, place: Tensor, size: list[int]) -> Tensor:
    return _last(y, y.shape[:-3], (y.shape[-3], size[0], size[1]))


def _last(like: Tensor, lead: tuple[int, ...], image: tuple[int, ...]) -> Tensor:
    """Room for images (..., C, H, W) that lie channel last."""
    *batch, channels, high, wide = image
    return like.new_empty(*lead, *batch, high, wide, channels).movedim(-1, -3)
