"""Layers that can be stacked: batch norm that knows which rows are padding, dropout that draws from a key.

PyTorch's own batch norm counts padded rows and writes its running statistics in place; its dropout draws from a
global generator, so a result would depend on which clients happen to be stacked. `twin` replaces both in any network.

What batch norm costs is `centre` (values minus their mean over the real rows) and `squares`. The mean is taken of
differences to one of the rows. So rows that are equal are centred to exactly 0 on every way; a mean that is off by its
last digit would leave noise, which batch norm divides by √eps and a ReLU takes the sign of. The first is linear, so its
derivative is itself; the derivative of the second is one product. With these derivatives declared, PyTorch makes half
the passes over memory that it makes to differentiate sums and masks one by one.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from posterity.core import random
from posterity.nn.convolution import adopt
from posterity.nn.pooling import adopt_mean, adopt_pool, call


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

    @staticmethod
    def backward(ctx: Any, grad: Tensor, mean_grad: Tensor) -> tuple[Tensor, None]:
        (real,) = ctx.saved_tensors
        shift = (mean_grad - _sum(grad, real)) / _count(grad, real)
        return (grad + _channels(shift, grad)) * _wide(real, grad).to(grad.dtype), None


class Squares(torch.autograd.Function):
    """x (B, C, ...) to the sums of its squares (B, C)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _by_row(x * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (2 * grad).reshape([*grad.shape] + [1] * (x.dim() - 2))


def squares(x: Tensor) -> Tensor:
    """The sums of the squares of x (B, C, ...) for every row and channel (B, C)."""
    return call(Squares, x)


def centre(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, C, ...) minus the mean of the rows that `real` (B,) marks, 0 in the others; and the mean (C,)."""
    return call(Centre, x, real)


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


SPREAD = 1 << 16  # dropout layer i in its u-th use folds i + SPREAD * u into the key: no two share a draw


class Norm(nn.Module):
    """`nn.BatchNorm1d/2d/3d` over the real rows only; the same state names, nothing written in place.

    A batch with a single real value per channel has no variance: it is normalised by the running statistics, and
    does not change them. New running statistics are *assigned*, so `functional_call` hands them back.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    mask: Tensor | None

    def __init__(
        self, features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track: bool = True
    ) -> None:
        super().__init__()
        self.features, self.eps, self.momentum = features, eps, momentum
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(features) if track else None)
        self.register_buffer("running_var", torch.ones(features) if track else None)
        self.register_buffer("mask", None, persistent=False)  # (B,) 1 = real, 0 = padding; None = all real

    def reset_parameters(self) -> None:
        """Weights one, biases zero, running statistics of a standard normal."""
        for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0), (self.running_var, 1.0)):
            if tensor is not None:
                with torch.no_grad():
                    tensor.fill_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every channel of x (B, C, ...)."""
        if x.dim() < 2 or x.shape[1] != self.features:
            raise ValueError(f"Norm over {self.features} channels was given {tuple(x.shape)}; it needs (B, C, ...).")
        shape, kind = [1, self.features] + [1] * (x.dim() - 2), x.dtype
        x = x.float() if kind in (torch.bfloat16, torch.float16) else x  # sums of many numbers
        if self.training and self.mask is None and x[:, 0].numel() > 1:
            return self._unmasked(x).to(kind)
        if self.training or self.running_mean is None:
            x, mean, var = self._centred(x)
        else:
            mean, var = self.running_mean, _known(self.running_var)
            x, mean = x - mean.reshape(shape), torch.zeros_like(mean)
        scale = torch.rsqrt(var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        rest = -mean * scale if self.bias is None else self.bias - mean * scale
        return (x * scale.reshape(shape) + rest.reshape(shape)).to(kind)

    def _centred(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x minus its mean over the real rows; what else is to be subtracted, and the variance (C,), (C,).

        In training, moves the running statistics.
        """
        real = self._real(x)
        count = real.sum().to(x.dtype) * x[0, 0].numel()
        some = count > 1
        x, mean = centre(x, real)
        var = squares(x).sum(0) / count.clamp(min=1)  # biased
        if self.running_mean is None:
            return x, torch.where(some, torch.zeros_like(mean), -mean), torch.where(some, var, torch.ones_like(var))
        old_mean, old_var = self.running_mean, _known(self.running_var)
        if self.training:
            self._move(mean, var * (count / (count - 1).clamp(min=1)), self.momentum * some.to(x.dtype))
        return x, torch.where(some, torch.zeros_like(mean), old_mean - mean), torch.where(some, var, old_var)

    def _unmasked(self, x: Tensor) -> Tensor:
        """PyTorch's own batch norm, for a batch in which every row is real."""
        count = x[:, 0].numel()
        origin = corner(x.detach())[0]  # the result does not depend on it, but for its rounding
        x = x - origin.reshape([1, -1] + [1] * (x.dim() - 2))
        made, mean, inverse = torch.native_batch_norm(
            x, self.weight, self.bias, None, None, True, self.momentum, self.eps
        )
        if self.running_mean is not None:
            self._move(origin + mean, (inverse**-2 - self.eps) * (count / (count - 1)), self.momentum)
        return made

    def _move(self, mean: Tensor, var: Tensor, rate: float | Tensor) -> None:
        """The running statistics a step towards those of a batch."""
        old_mean, old_var = _known(self.running_mean), _known(self.running_var)
        self.running_mean = (old_mean + rate * (mean - old_mean)).detach()
        self.running_var = (old_var + rate * (var - old_var)).detach()

    def _real(self, x: Tensor) -> Tensor:
        """Which rows count (B,)."""
        if self.mask is None:
            return torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
        return self.mask != 0


class KeyedDropout(nn.Module):
    """`nn.Dropout` (whole channels with `channels=True`) whose draw is a function of a key and of the layer's index.

    The draw's first axis is the batch, so that more padding does not change what the real rows see.
    """

    key: Tensor | None

    def __init__(self, p: float = 0.5, channels: bool = False, index: int = 0) -> None:
        super().__init__()
        self.p, self.channels, self.index = p, channels, index
        self.uses = 0  # times used in the call under way: a layer used twice draws twice
        self.register_buffer("key", None, persistent=False)  # (2,) int64

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of x (B, ...), or channels of x (B, C, ...), and scale the others by 1 / (1 - p)."""
        if not self.training or self.p == 0.0:
            return x
        if self.p == 1.0:
            return torch.zeros_like(x) * x
        if self.key is None:
            raise ValueError("A network with dropout was called with train=True and no key: pass key=here.key.")
        shape = tuple(x.shape[:2]) if self.channels else tuple(x.shape)
        u = random.uniform(random.fold(self.key, self.index + SPREAD * self.uses), shape, x.dtype)
        self.uses += 1
        keep = (u >= self.p).reshape(shape + (1,) * (x.dim() - len(shape)))
        return torch.where(keep, x / (1.0 - self.p), 0.0)


NORMS: tuple[type[nn.Module], ...] = (Norm, _BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
DROPOUTS = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}
RANDOM = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def twin(module: nn.Module) -> nn.Module:
    """A deep copy of `module` in which every batch norm and dropout layer is its stackable twin."""
    made: dict[int, nn.Module] = {}  # a layer that sits in two places has one twin
    count = 0

    def visit(layer: nn.Module) -> nn.Module:
        nonlocal count
        if id(layer) not in made:
            made[id(layer)] = new = _replacement(layer, count)
            count += isinstance(new, KeyedDropout)
            for name, child in list(layer._modules.items()):  # named_children would list a shared layer only once
                if child is not None:
                    new._modules[name] = visit(child)
        return made[id(layer)]

    return visit(copy.deepcopy(module))


def unstackable(module: nn.Module) -> tuple[str, ...]:
    """Reasons, one per layer, why `module` cannot run with many clients in one tensor program; empty if none."""
    found = ((name or "the network", _reason(layer)) for name, layer in module.named_modules())
    return tuple(f"{name}: {reason}" for name, reason in found if reason)


def _replacement(layer: nn.Module, index: int) -> nn.Module:
    if isinstance(layer, _BatchNorm) and type(layer).forward is _BatchNorm.forward and not _lazy(layer):
        return _norm(layer)
    for kind, channels in DROPOUTS.items():
        if type(layer).forward is kind.forward and isinstance(layer, kind):
            new: nn.Module = KeyedDropout(layer.p, channels, index)
            return new.train(layer.training)
    if isinstance(layer, nn.MaxPool2d):
        return adopt_pool(layer)
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        return adopt_mean(layer)
    return adopt(layer) if isinstance(layer, nn.Conv2d) else layer


def _norm(layer: _BatchNorm) -> Norm:
    if layer.momentum is None:
        raise ValueError("Batch norm with momentum=None (a cumulative average) is not supported: give it one, say 0.1.")
    new = Norm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.running_mean is not None)
    for name in ("weight", "bias", "running_mean", "running_var"):
        if getattr(layer, name) is not None:
            setattr(new, name, getattr(layer, name))
    new.train(layer.training)
    return new


def _reason(layer: nn.Module) -> str:
    if _lazy(layer):
        return "a lazy layer has no shapes yet; run one batch through the network first"
    if parametrize.is_parametrized(layer) or _hooked(layer):
        return "weight and spectral norm recompute weights outside the call; use plain weights"
    if isinstance(layer, nn.SyncBatchNorm):
        return "SyncBatchNorm talks to other processes; use nn.BatchNorm"
    if isinstance(layer, (_BatchNorm, *DROPOUTS)):
        return f"{type(layer).__name__} overrides PyTorch's forward, so it has no masked or keyed twin"
    if isinstance(layer, nn.RNNBase):
        return f"{type(layer).__name__} runs a fused kernel without a batching rule; use the Cell form"
    if isinstance(layer, nn.EmbeddingBag):
        return "EmbeddingBag has no batching rule; use nn.Embedding and a mean"
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        return f"{type(layer).__name__} writes its running statistics in place; use track_running_stats=False"
    if isinstance(layer, RANDOM) or (isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0):
        return f"{type(layer).__name__} draws from the global generator; use nn.Dropout"
    return ""


def _hooked(layer: nn.Module) -> bool:
    # the older torch.nn.utils.weight_norm and spectral_norm are pre-hooks of these classes
    return any(type(h).__name__ in ("WeightNorm", "SpectralNorm") for h in layer._forward_pre_hooks.values())


def _lazy(layer: nn.Module) -> bool:
    tensors = (*layer._parameters.values(), *layer._buffers.values())
    return any(t is not None and is_lazy(t) for t in tensors)


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
