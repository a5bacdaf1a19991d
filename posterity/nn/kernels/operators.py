"""The kernels of convolution and pooling as operators that PyTorch knows by name.

A tracer follows functions on tensors without content, on which no kernel can be started. It writes down the operator
instead, and asks here for the shape and layout of its result.
"""

from __future__ import annotations

import torch
from torch import Tensor, library

from posterity.nn.kernels import _convolution, _pooling
from posterity.nn.kernels.grid import WindowGrid

Numbers = list[int]  # of a grid: shape, window, stride, padding


@library.custom_op("posterity::convolve", mutates_args=())
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grid: list[int]) -> Tensor:
    return _convolution.convolve(x, weight, bias, _read(grid))


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, grid: list[int]) -> Tensor:
    lead = torch.broadcast_shapes(x.shape[:-4], weight.shape[:-4], () if bias is None else bias.shape[:-1])
    return _last(x, lead, (grid[0], weight.shape[-4], *_read(grid).places))


@library.custom_op("posterity::spread", mutates_args=())
def _spread(weight: Tensor, grad: Tensor, grid: list[int]) -> Tensor:
    return _convolution.spread(weight, grad, _read(grid))


@_spread.register_fake
def _(weight: Tensor, grad: Tensor, grid: list[int]) -> Tensor:
    return _last(grad, torch.broadcast_shapes(weight.shape[:-4], grad.shape[:-4]), tuple(grid[:4]))


@library.custom_op("posterity::weigh", mutates_args=())
def _weigh(x: Tensor, grad: Tensor, grid: list[int]) -> tuple[Tensor, Tensor]:
    return _convolution.weigh(x, grad, _read(grid))


@_weigh.register_fake
def _(x: Tensor, grad: Tensor, grid: list[int]) -> tuple[Tensor, Tensor]:
    lead, outputs = torch.broadcast_shapes(x.shape[:-4], grad.shape[:-4]), grad.shape[-3]
    return x.new_empty(*lead, outputs, grid[1], grid[4], grid[5]), x.new_empty(*lead, outputs)


@library.custom_op("posterity::pool", mutates_args=())
def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """`_pooling.pool`."""
    return _pooling.pool(x)


@pool.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    out = _last(x, x.shape[:-3], (x.shape[-3], x.shape[-2] // 2, x.shape[-1] // 2))
    return out, torch.empty_like(out, dtype=torch.int8)


@library.custom_op("posterity::take", mutates_args=())
def take(x: Tensor, place: Tensor) -> Tensor:
    """`_pooling.take`."""
    return _pooling.take(x, place)


@take.register_fake
def _(x: Tensor, place: Tensor) -> Tensor:
    return _last(x, x.shape[:-3], (x.shape[-3], x.shape[-2] // 2, x.shape[-1] // 2))


@library.custom_op("posterity::put", mutates_args=())
def _put(y: Tensor, place: Tensor, size: list[int]) -> Tensor:
    return _pooling.put(y, place, (size[0], size[1]))


@_put.register_fake
def _(y: Tensor, place: Tensor, size: list[int]) -> Tensor:
    return _last(y, y.shape[:-3], (y.shape[-3], size[0], size[1]))


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grid: WindowGrid) -> Tensor:
    """`_convolution.convolve`."""
    made: Tensor = _convolve(x, weight, bias, _written(grid))
    return made


def spread(weight: Tensor, grad: Tensor, grid: WindowGrid) -> Tensor:
    """`_convolution.spread`."""
    made: Tensor = _spread(weight, grad, _written(grid))
    return made


def weigh(x: Tensor, grad: Tensor, grid: WindowGrid) -> tuple[Tensor, Tensor]:
    """`_convolution.weigh`."""
    made: tuple[Tensor, Tensor] = _weigh(x, grad, _written(grid))
    return made


def put(y: Tensor, place: Tensor, size: tuple[int, int]) -> Tensor:
    """`_pooling.put`."""
    made: Tensor = _put(y, place, list(size))
    return made


def _written(grid: WindowGrid) -> Numbers:
    return [*grid.shape, *grid.window, *grid.stride, *grid.pad]


def _read(n: Numbers) -> WindowGrid:
    return WindowGrid((n[0], n[1], n[2], n[3]), (n[4], n[5]), (n[6], n[7]), (n[8], n[9]))


def _last(like: Tensor, lead: tuple[int, ...], image: tuple[int, ...]) -> Tensor:
    """Room for images (..., C, H, W) that lie channel last."""
    *batch, channels, high, wide = image
    return like.new_empty(*lead, *batch, high, wide, channels).movedim(-1, -3)
