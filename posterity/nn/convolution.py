"""Convolution in four ways: PyTorch's own, with the channel last, patches times a matrix, and Triton kernels.

When every client has its own filters, PyTorch runs a grouped convolution with few channels a group, which leaves a GPU
mostly idle. Patches laid out by a strided copy turn it into one batched matrix product, forward and backward, at
several times the speed; they cost k² times the memory of the input. The kernels (`kernels/_convolution.py`) find the
patches by index arithmetic while they multiply; they need a GPU. On a CPU, images of one client that lie channel last
are pooled several times faster. Which way wins depends on device and sizes, so the engine measures (`Model.rewired`).
All compute the same sums; only their rounding differs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.nn._grid import WindowGrid
from posterity.nn._names import unknown
from posterity.nn.bilinear import Convolve
from posterity.nn.pooling import Pooling, converted

Way = Literal["native", "patches", "triton", "last"]
WAYS: tuple[Way, ...] = get_args(Way)
KINDS = (torch.float32, torch.bfloat16, torch.float16)  # what the kernels compute with


class Convolution(nn.Conv2d):
    """`nn.Conv2d` that can be told how to compute."""

    way: Way = "native"

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.way == "native":
            return super()._conv_forward(input, weight, bias)
        if self.way == "last":
            return super()._conv_forward(_laid(input), weight, bias)  # oneDNN lays filters out anyway
        assert isinstance(self.padding, tuple)
        compute = by_kernel if self.way == "triton" else by_patches
        return compute(input, weight, bias, self.stride, self.padding)


class Last(torch.autograd.Function):
    """Images as they are, but with the channel last in memory. Stacks keep their layout: theirs is not chosen here."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        laid = x.contiguous(memory_format=torch.channels_last)
        return x.detach() if laid is x else laid

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def jvp(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor) -> tuple[Tensor, int]:
        return x.clone(), axes[0]


def _laid(x: Tensor) -> Tensor:
    laid: Tensor = Last.apply(x)  # type: ignore[no-untyped-call]
    return laid


def by_patches(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], pad: tuple[int, ...]) -> Tensor:
    """`F.conv2d` of x (B, C, H, W) with weight (O, C, h, w), as one matrix product."""
    if any(pad):
        x = F.pad(x, (pad[1], pad[1], pad[0], pad[0]))
    grid = WindowGrid((*x.shape,), (weight.shape[2], weight.shape[3]), (stride[0], stride[1]))
    product = weight.flatten(1) @ _apply(Gather, x, grid)  # (O, B H' W')
    if bias is not None:
        product = product + bias[:, None]
    return product.reshape(len(weight), len(x), *grid.places).transpose(0, 1)  # (B, O, H', W')


def gather(x: Tensor, grid: WindowGrid) -> Tensor:
    """Patches (..., C h w, B H' W') of images (..., B, C, H, W), by one strided copy."""
    windows = x.unfold(-2, grid.window[0], grid.stride[0]).unfold(-2, grid.window[1], grid.stride[1])
    order = (-5, -2, -1, -6, -4, -3)  # (..., B, C, H', W', h, w) to (..., C, h, w, B, H', W')
    axes = [*range(x.dim() - 4), *(windows.dim() + a for a in order)]
    return windows.permute(axes).flatten(-3).flatten(-4, -2)


def scatter(patches: Tensor, grid: WindowGrid) -> Tensor:
    """The transpose of `gather`: every entry added to the pixel that it came from."""
    lead, (batch, channels, height, width) = patches.shape[:-2], grid.shape
    high, wide = grid.places
    cells = patches.reshape(*lead, channels, *grid.window, batch, high, wide)
    order = (-3, -6, -2, -1, -5, -4)  # back to (..., B, C, H', W', h, w)
    cells = cells.permute([*range(len(lead)), *(cells.dim() + a for a in order)])
    axis = len(lead) + 3  # W', then H': one axis after the other needs far fewer additions than both at once
    sizes = [*lead, batch, channels, high, width, grid.window[0]]
    rows = torch.ops.aten.unfold_backward(cells, sizes, axis, grid.window[1], grid.stride[1])
    sizes = [*lead, batch, channels, height, width]
    image: Tensor = torch.ops.aten.unfold_backward(rows, sizes, axis - 1, grid.window[0], grid.stride[0])
    return image


class Gather(torch.autograd.Function):
    """`gather` with a derivative and a rule for stacks: PyTorch's own loops over the clients of a stack."""

    @staticmethod
    def forward(x: Tensor, grid: WindowGrid) -> Tensor:
        return gather(x, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.grid = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _apply(Scatter, grad, ctx.grid), None

    @staticmethod
    def jvp(ctx: Any, x: Tensor, _: None) -> Tensor:
        return _apply(Gather, x, ctx.grid)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor, grid: WindowGrid) -> tuple[Tensor, int]:
        return _apply(Gather, x.movedim(axes[0], 0), grid), 0


class Scatter(torch.autograd.Function):
    """`scatter`; the two are each other's derivative."""

    @staticmethod
    def forward(patches: Tensor, grid: WindowGrid) -> Tensor:
        return scatter(patches, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.grid = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _apply(Gather, grad, ctx.grid), None

    @staticmethod
    def jvp(ctx: Any, patches: Tensor, _: None) -> Tensor:
        return _apply(Scatter, patches, ctx.grid)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], patches: Tensor, grid: WindowGrid) -> tuple[Tensor, int]:
        return _apply(Scatter, patches.movedim(axes[0], 0), grid), 0


def _apply(function: type[torch.autograd.Function], tensor: Tensor, grid: WindowGrid) -> Tensor:
    result: Tensor = function.apply(tensor, grid)  # type: ignore[no-untyped-call]
    return result


def by_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], pad: tuple[int, ...]) -> Tensor:
    """`F.conv2d` by Triton kernels; by patches where they do not apply: float64, tensors of the host, nothing to do."""
    grid = WindowGrid((*x.shape,), (weight.shape[2], weight.shape[3]), (stride[0], stride[1]), (pad[0], pad[1]))
    places = len(x) * max(x.shape[2] * x.shape[3], grid.places[0] * grid.places[1])
    fits = x.numel() > 0 and min(grid.places) > 0 and places < 2**31  # a program's place is counted with 32 bits
    if not fits or x.dtype not in KINDS or weight.dtype != x.dtype or not (x.is_cuda or interpreted()):
        return by_patches(x, weight, bias, stride, pad)
    result: Tensor = Convolve.apply(x, weight, bias, grid)  # type: ignore[no-untyped-call]
    return result


def interpreted() -> bool:
    """Whether Triton runs kernels on the host, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def demand_triton() -> None:
    """Raise where the way `triton` cannot work."""
    if find_spec("triton") is None:
        raise ValueError("The convolution 'triton' needs the package triton (pip install triton); use 'patches'.")
    if not (torch.cuda.is_available() or interpreted()):
        raise ValueError("The convolution 'triton' needs a CUDA device, and there is none here; use 'native'.")


def way_of(module: nn.Module) -> str:
    """The way of the convolutions of `module`; empty if it has none."""
    return next((layer.way for layer in module.modules() if isinstance(layer, Convolution)), "")


def possible_ways(device: str) -> tuple[Way, ...]:
    """The ways that can be tried on a device, the usual one last."""
    if device != "cuda":
        return ("patches", "last", "native")
    return ("native", "patches", "triton") if find_spec("triton") is not None else ("native", "patches")


def rewire(module: nn.Module, way: Way) -> bool:
    """Set the way of every convolution of `module`; whether there is one."""
    if way not in WAYS:
        raise ValueError(unknown("way to convolve called", str(way), WAYS))
    if way == "triton":
        demand_triton()
    for layer in module.modules():
        if isinstance(layer, Convolution | Pooling):
            layer.way = way
    return way_of(module) == way


def adopt(layer: nn.Conv2d) -> nn.Conv2d:
    """A `Convolution` in place of `layer`, if it is a plain one."""
    plain = type(layer) is nn.Conv2d and layer.groups == 1 and set(layer.dilation) == {1}
    if plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return converted(layer, Convolution)
    return layer


__all__ = ["WAYS", "Convolution", "Way", "adopt", "by_kernel", "by_patches", "possible_ways", "rewire", "way_of"]
