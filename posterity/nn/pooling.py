"""The largest of every 2 × 2 pixels, computed by PyTorch or, beside convolutions by Triton, by kernels; means of all.

PyTorch's operator keeps places as 64-bit numbers and takes longer, both ways, than the convolution before it does when
that is fast. The kernels work on images that lie channel last, as the convolutions leave them, and keep a byte.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

KINDS = (torch.float32, torch.bfloat16, torch.float16)
Layer = TypeVar("Layer", bound=nn.Module)


class Pooling(nn.MaxPool2d):
    """`nn.MaxPool2d(2)` that can be told how to compute."""

    way: str = "native"

    def forward(self, input: Tensor) -> Tensor:
        small = input.numel() == 0 or min(input.shape[-2:]) < 2 or input.numel() >= 2**31
        if self.way != "triton" or small or input.dtype not in KINDS or not input.is_cuda:
            return super().forward(input)
        return call(MaxPool, input)[0]


def adopt_pool(layer: nn.MaxPool2d) -> nn.MaxPool2d:
    """A `Pooling` in place of `layer`, if it is a plain one of 2 × 2."""
    two, plain = {2, (2, 2)}, type(layer) is nn.MaxPool2d and not (layer.ceil_mode or layer.return_indices)
    flush = (layer.padding, layer.dilation) in ((0, 1), ((0, 0), (1, 1)))
    if plain and flush and layer.kernel_size in two and layer.stride in two:
        return converted(layer, Pooling)
    return layer


class GlobalMean(nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d(1)` as a mean: PyTorch's operator takes clients one by one if channels come last."""

    def forward(self, input: Tensor) -> Tensor:
        return input.mean((-2, -1), keepdim=True)


def adopt_mean(layer: nn.AdaptiveAvgPool2d) -> nn.AdaptiveAvgPool2d:
    """A `GlobalMean` in place of `layer`, if it is a plain one of one pixel."""
    plain = type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1), [1, 1])
    return converted(layer, GlobalMean) if plain else layer


def converted(layer: nn.Module, kind: type[Layer]) -> Layer:
    """A layer of another kind with the weights, settings and hooks of `layer`, and no draws for new weights."""
    new = kind.__new__(kind)
    new.__setstate__(vars(layer).copy())  # type: ignore[no-untyped-call]  # as `copy.copy` makes one of the same kind
    return new


class MaxPool(torch.autograd.Function):
    """Images to the largest of every four pixels, and which it was."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return kernels().pool(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.size = (inputs[0].shape[-2], inputs[0].shape[-1])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        return call(Put, grad, ctx.saved_tensors[0], ctx.size)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return call(MaxPool, x.movedim(axes[0], 0)), (0, 0)


class Take(torch.autograd.Function):
    """(images, places) to the pixels there."""

    @staticmethod
    def forward(x: Tensor, place: Tensor) -> Tensor:
        return kernels().take(x, place)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.size = (inputs[0].shape[-2], inputs[0].shape[-1])
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return call(Put, grad, ctx.saved_tensors[0], ctx.size), None

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor, place: Tensor) -> tuple[Tensor, int]:
        return call(Take, *_lifted(info, axes, x, place)), 0


class Put(torch.autograd.Function):
    """(pixels, places, size) to images that are 0 elsewhere; the transpose of `Take`."""

    @staticmethod
    def forward(y: Tensor, place: Tensor, size: tuple[int, int]) -> Tensor:
        return kernels().put(y, place, list(size))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.size = inputs[2]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return call(Take, grad, ctx.saved_tensors[0]), None, None

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], y: Tensor, place: Tensor, size: Any) -> tuple[Tensor, int]:
        return call(Put, *_lifted(info, axes, y, place), size), 0


def _lifted(info: Any, axes: tuple[Any, ...], *operands: Tensor) -> list[Tensor]:
    """Both operands with the mapped axis in front."""
    pairs = zip(operands, axes[:2], strict=True)
    return [v.expand(info.batch_size, *v.shape) if a is None else v.movedim(a, 0) for v, a in pairs]


def call(function: type[torch.autograd.Function], *operands: Any) -> Any:
    """What a function with a derivative of its own returns."""
    return function.apply(*operands)  # type: ignore[no-untyped-call]


def kernels() -> Any:
    """The operators of `nn/kernels`."""
    from posterity.nn.kernels import operators  # Triton is imported here, where it is used

    return operators
