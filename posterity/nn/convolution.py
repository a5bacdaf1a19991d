"""Convolution in four ways: PyTorch's own, with the channel last, patches times a matrix, and Triton kernels.

When every client has its own filters, PyTorch runs a grouped convolution with few channels a group, which leaves a GPU
mostly idle. Patches laid out by a strided copy turn it into one batched matrix product, forward and backward, at
several times the speed; they cost k² times the memory of the input. The kernels (`kernels/_convolution.py`) find the
patches by index arithmetic while they multiply; they need a GPU. On a CPU, images of one client that lie channel last
are pooled several times faster. Which one wins depends on device and sizes: the engine chooses (`engine/choose.py`).
All compute the same sums; only their rounding differs.

Derivatives of the kernels: a convolution and its two gradients are linear in either operand, and the derivatives of
each are the other two, so they close under differentiation, to any order (backward). Operands may have leading axes,
the clients'. An operand that all clients share gets one of length 1 (`_lift`), and its gradients are added up again
(`_fit`).
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.nn.kernels.grid import WindowGrid
from posterity.nn.pooling import Pooling, call, converted, kernels
from posterity.settings.hyperparameters import unknown


class _Bilinear(torch.autograd.Function):
    """A function of two operands and a grid, with a rule for stacks."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *operands, ctx.grid = inputs
        ctx.save_for_backward(*operands)

    @classmethod
    def vmap(cls, info: Any, axes: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        made = call(cls, *_lift(axes, operands))
        return made, (0, 0) if isinstance(made, tuple) else 0


class Convolve(_Bilinear):
    """(x, weight, bias) to images."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, grid: WindowGrid) -> Tensor:
        return kernels().convolve(x, weight, bias, grid.numbers)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.grid = inputs
        ctx.bias = None if bias is None else bias.shape
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), need = ctx.saved_tensors, ctx.needs_input_grad
        for_x = _fit(call(InputGradient, weight, grad, ctx.grid), x.shape) if need[0] else None  # not for a first layer
        if not (need[1] or need[2]):
            return for_x, None, None, None
        for_weight, for_bias = call(WeightGradient, x, grad, ctx.grid)
        return for_x, _fit(for_weight, weight.shape), _fit(for_bias, ctx.bias) if need[2] else None, None


class InputGradient(_Bilinear):
    """(weight, gradient of the images) to the gradient of x."""

    @staticmethod
    def forward(weight: Tensor, grad: Tensor, grid: WindowGrid) -> Tensor:
        return kernels().spread(weight, grad, grid.numbers)

    @staticmethod
    def backward(ctx: Any, turn: Tensor) -> tuple[Tensor | None, ...]:
        (weight, grad), need = ctx.saved_tensors, ctx.needs_input_grad
        for_weight = _fit(call(WeightGradient, turn, grad, ctx.grid)[0], weight.shape) if need[0] else None
        return for_weight, _fit(call(Convolve, turn, weight, None, ctx.grid), grad.shape) if need[1] else None, None


class WeightGradient(_Bilinear):
    """(x, gradient of the images) to the gradients of weight and bias."""

    @staticmethod
    def forward(x: Tensor, grad: Tensor, grid: WindowGrid) -> tuple[Tensor, Tensor]:
        return kernels().weigh(x, grad, grid.numbers)

    @staticmethod
    def backward(ctx: Any, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        (x, grad), need = ctx.saved_tensors, ctx.needs_input_grad
        for_x = _fit(call(InputGradient, weight, grad, ctx.grid), x.shape) if need[0] else None
        return for_x, _fit(call(Convolve, x, weight, bias, ctx.grid), grad.shape) if need[1] else None, None


def _lift(axes: tuple[Any, ...], operands: tuple[Any, ...]) -> list[Any]:
    """Every tensor with the clients' axis in front, of length 1 if all share it."""
    pairs = list(zip(operands, axes, strict=True))
    return [v if not isinstance(v, Tensor) else v[None] if a is None else v.movedim(a, 0) for v, a in pairs]


def _fit(grad: Tensor, shape: torch.Size) -> Tensor:
    """A gradient added up along the axes that its operand shares."""
    shared = [axis for axis, size in enumerate(shape) if size == 1 and grad.shape[axis] > 1]
    return grad.sum(shared, keepdim=True) if shared else grad


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
            return super()._conv_forward(call(Last, input), weight, bias)  # oneDNN lays filters out anyway
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
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor) -> tuple[Tensor, int]:
        return x.clone(), axes[0]


def by_patches(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], pad: tuple[int, ...]) -> Tensor:
    """`F.conv2d` of x (B, C, H, W) with weight (O, C, h, w), as one matrix product."""
    if any(pad):
        x = F.pad(x, (pad[1], pad[1], pad[0], pad[0]))
    grid = WindowGrid((*x.shape,), (weight.shape[2], weight.shape[3]), (stride[0], stride[1]))
    product = weight.flatten(1) @ call(Gather, x, grid)  # (O, B H' W')
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


def _pair(*functions: Callable[[Tensor, WindowGrid], Tensor]) -> list[type[torch.autograd.Function]]:
    """Two functions, each other's derivative, with a rule for stacks: PyTorch's own loops over the clients."""
    made: list[type[torch.autograd.Function]] = []

    def make(k: int) -> type[torch.autograd.Function]:
        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(x: Tensor, grid: WindowGrid) -> Tensor:
                return functions[k](x, grid)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
                ctx.grid = inputs[1]

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
                return call(made[1 - k], grad, ctx.grid), None

            @staticmethod
            def vmap(info: Any, axes: tuple[Any, ...], x: Tensor, grid: WindowGrid) -> tuple[Tensor, int]:
                return call(made[k], x.movedim(axes[0], 0), grid), 0

        return Linear

    made += [make(0), make(1)]
    return made


Gather, Scatter = _pair(gather, scatter)


def by_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], pad: tuple[int, ...]) -> Tensor:
    """`F.conv2d` by Triton kernels; by patches where they do not apply: float64, tensors of the host, nothing to do."""
    grid = WindowGrid((*x.shape,), (weight.shape[2], weight.shape[3]), (stride[0], stride[1]), (pad[0], pad[1]))
    places = len(x) * max(x.shape[2] * x.shape[3], grid.places[0] * grid.places[1])
    fits = x.numel() > 0 and min(grid.places) > 0 and places < 2**31  # a program's place is counted with 32 bits
    if not fits or x.dtype not in KINDS or weight.dtype != x.dtype or not (x.is_cuda or interpreted()):
        return by_patches(x, weight, bias, stride, pad)
    return call(Convolve, x, weight, bias, grid)


def interpreted() -> bool:
    """Whether Triton runs kernels on the host, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


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
    if way == "triton" and find_spec("triton") is None:
        raise ValueError("The convolution 'triton' needs the package triton (pip install triton); use 'patches'.")
    if way == "triton" and not (torch.cuda.is_available() or interpreted()):
        raise ValueError("The convolution 'triton' needs a CUDA device, and there is none here; use 'native'.")
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
